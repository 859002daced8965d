//! When a refused client should come again (apf.md 7.1).

use std::collections::VecDeque;

/// Seconds above which the answer never rises.
const MOST_S: u64 = 32;

/// The dropped-requests tracker of one level. It doubles under sustained refusals, falls by one in a second
/// with few, and does not change while there are none.
#[derive(Clone, Debug)]
pub struct RetryAfter {
    answer_s: u64,
    raised_at: u64,
    /// The current second, and the refusals in it.
    current: (u64, u64),
    /// Earlier seconds, at most as many as the answer can be long.
    history: VecDeque<(u64, u64)>,
}

impl Default for RetryAfter {
    fn default() -> Self {
        Self { answer_s: 1, raised_at: 0, current: (0, 0), history: VecDeque::new() }
    }
}

impl RetryAfter {
    /// Notes one refusal at this second (any epoch long past) and gives the seconds to answer with.
    pub fn refused(&mut self, second: u64) -> u64 {
        if second == self.current.0 {
            self.current.1 += 1;
            return self.answer_s;
        }
        let oldest = self.current.0.saturating_sub((2 * self.answer_s).min(MOST_S));
        self.history.push_back(self.current);
        while self.history.front().is_some_and(|(at, _)| *at < oldest) {
            self.history.pop_front();
        }
        self.current = (second, 1);
        let window = second.saturating_sub(self.answer_s)..second;
        let refused: u64 = self.history.iter().filter(|(at, _)| window.contains(at)).map(|(_, count)| count).sum();
        if second.saturating_sub(self.raised_at) >= self.answer_s && refused >= 3 * self.answer_s {
            self.answer_s = (2 * self.answer_s).min(MOST_S);
            self.raised_at = second;
        } else if refused < self.answer_s && self.answer_s > 1 {
            self.answer_s -= 1;
        }
        self.answer_s
    }

    /// Seconds to answer with.
    pub fn seconds(&self) -> u64 {
        self.answer_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors;

    #[test]
    fn answers_are_those_of_kubernetes() {
        let cases = vectors::cases("retry_after.json");
        for case in &cases {
            let (start, mut tracker) = (vectors::number(case, "startUnix") as u64, RetryAfter::default());
            assert_eq!(tracker.seconds(), 1);
            let steps: Vec<[u64; 3]> = serde_json::from_value(case["steps"].clone()).unwrap();
            for [offset, refused, want] in steps {
                (0..refused).for_each(|_| {
                    tracker.refused(start + offset);
                });
                assert_eq!(tracker.seconds(), want, "second {offset} of {start}");
            }
        }
        assert_eq!(cases.len(), 25);
    }
}
