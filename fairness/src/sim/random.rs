//! Random numbers for traffic: splitmix64. What is drawn from a distribution goes through the platform's `ln` and `pow`.

use super::Distribution;

#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [0, 1).
    pub(super) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(super) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    pub(super) fn draw(&mut self, from: &Distribution) -> f64 {
        match *from {
            Distribution::Const { v } => v,
            Distribution::Unknown => 0.0,
            Distribution::Exp { mean } => self.exponential(mean),
            Distribution::Pareto { min, alpha, max } => (min / (1.0 - self.unit()).powf(1.0 / alpha)).min(max),
            Distribution::Two { a, b, p_b } => {
                if self.unit() < p_b {
                    b
                } else {
                    a
                }
            }
        }
    }
}
