//! Shuffle sharding: which queues of a level a flow may use (apf.md 4).
//!
//! A flow's hash is dealt as a hand of distinct queues out of the level's deck, so that two flows rarely
//! share all of theirs. Hands are bit for bit those of Kubernetes. Nothing here allocates.

use sha2::{Digest, Sha256};

/// The largest legal hand: 60 bits of hash leave no room for more.
pub const MAX_HAND_SIZE: usize = 15;
/// The largest legal deck.
pub const MAX_DECK_SIZE: u32 = 1 << 26;
/// Bits of the hash that hands may use up.
const MAX_HASH_BITS: u32 = 60;

/// A pair of deck and hand size that cannot be dealt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeckError {
    /// A size is zero, the hand exceeds the deck, or the deck exceeds [`MAX_DECK_SIZE`].
    #[error("a hand of {hand} out of {deck} queues is impossible: want 1 <= hand <= queues <= 67108864")]
    Size {
        /// Queues.
        deck: u32,
        /// Queues in a hand.
        hand: u32,
    },
    /// The hash has not enough bits to tell the hands apart.
    #[error("a hand of {hand} out of {deck} queues takes {bits} bits of hash, more than the 60 there are")]
    Entropy {
        /// Queues.
        deck: u32,
        /// Queues in a hand.
        hand: u32,
        /// Bits that it would take.
        bits: u32,
    },
}

/// Bits of hash that a hand uses up: `ceil(log2(deck) * hand)`, in double precision as upstream computes it.
pub fn entropy_bits(deck: u32, hand: u32) -> u32 {
    (f64::from(deck).log2() * f64::from(hand)).ceil() as u32
}

/// Checks the sizes of a deck and of the hands dealt from it.
///
/// # Errors
/// See [`DeckError`].
pub fn check(deck: u32, hand: u32) -> Result<(), DeckError> {
    if hand == 0 || hand > deck || deck > MAX_DECK_SIZE {
        return Err(DeckError::Size { deck, hand });
    }
    match entropy_bits(deck, hand) {
        0..=MAX_HASH_BITS if hand as usize <= MAX_HAND_SIZE => Ok(()),
        bits => Err(DeckError::Entropy { deck, hand, bits }),
    }
}

/// The queues of one flow, in dealing order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hand {
    cards: [u32; MAX_HAND_SIZE],
    len: usize,
}

impl std::ops::Deref for Hand {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        self.cards.get(..self.len).unwrap_or_default()
    }
}

/// Deals `size` distinct queues out of `0..deck`. Sizes that [`check`] refuses are cut to what can be dealt
/// (an empty hand when there is no deck).
pub fn hand(hash: u64, deck: u32, size: u32) -> Hand {
    let mut hand = Hand { cards: [0; MAX_HAND_SIZE], len: (size.min(deck) as usize).min(MAX_HAND_SIZE) };
    // The remainders must all stay at hand while the cards are made from them: a card steps over each
    // earlier *remainder* that is not above it, latest first.
    let mut remainders = [0u32; MAX_HAND_SIZE];
    let mut rest = hash;
    for (i, remainder) in remainders.iter_mut().take(hand.len).enumerate() {
        let cards_left = u64::from(deck) - i as u64;
        *remainder = (rest % cards_left) as u32;
        rest /= cards_left;
    }
    for (i, (card, &own)) in hand.cards.iter_mut().zip(&remainders).take(hand.len).enumerate() {
        *card = remainders.iter().take(i).rev().fold(own, |card, &earlier| card + u32::from(card >= earlier));
    }
    hand
}

/// The hash of a flow in a level that belongs to one workspace: of FlowSchema and distinguisher, the number
/// that Kubernetes computes.
pub fn flow_hash(flow_schema: &str, distinguisher: &[&str]) -> u64 {
    finish(Sha256::new().chain_update(flow_schema), distinguisher)
}

/// The hash of a flow in a level that several workspaces share: flows of the same name in two of them are
/// two flows (apf.md 9, row 3).
pub fn shared_flow_hash(workspace: &str, flow_schema: &str, distinguisher: &[&str]) -> u64 {
    finish(Sha256::new().chain_update(workspace).chain_update([0]).chain_update(flow_schema), distinguisher)
}

/// `distinguisher` comes in parts so that nobody has to join them.
fn finish(hash: Sha256, distinguisher: &[&str]) -> u64 {
    let hash = distinguisher.iter().fold(hash.chain_update([0]), |hash, part| hash.chain_update(part));
    let digest = hash.finalize();
    let mut first = [0; 8];
    first.iter_mut().zip(digest).for_each(|(to, from)| *to = from);
    u64::from_le_bytes(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors;

    #[test]
    fn hands_are_those_of_kubernetes() {
        let cases = vectors::cases("sharding.json");
        for case in &cases {
            let (deck, size) = (vectors::number(case, "deckSize"), vectors::number(case, "handSize"));
            let sizes = u32::try_from(deck).ok().zip(u32::try_from(size).ok());
            let dealt = sizes.filter(|&(deck, size)| check(deck, size).is_ok());
            assert_eq!(dealt.is_none(), case.get("error").is_some(), "{case}");
            let Some((deck, size)) = dealt else { continue };
            assert_eq!(i64::from(entropy_bits(deck, size)), vectors::number(case, "requiredEntropyBits"), "{case}");
            let hash = case["hashValue"].as_str().unwrap().parse().unwrap();
            let want: Vec<u32> = serde_json::from_value(case["hand"].clone()).unwrap();
            assert_eq!(&*hand(hash, deck, size), want, "{case}");
        }
        assert_eq!(cases.len(), 310);
    }

    #[test]
    fn flow_hashes_are_those_of_kubernetes() {
        let cases = vectors::cases("flow_hash.json");
        for case in &cases {
            let (schema, rest) = (case["flowSchema"].as_str().unwrap(), case["distinguisher"].as_str().unwrap());
            assert_eq!(flow_hash(schema, &[rest]).to_string(), case["hashValue"].as_str().unwrap(), "{case}");
        }
        assert_eq!(cases.len(), 215);
    }

    #[test]
    fn flows_of_two_workspaces_differ_in_a_shared_level() {
        assert_ne!(shared_flow_hash("a", "fs", &["alice"]), shared_flow_hash("b", "fs", &["alice"]));
        assert_ne!(shared_flow_hash("a", "fs", &["alice"]), flow_hash("fs", &["alice"]));
        assert_eq!(flow_hash("fs", &["al", "ice"]), flow_hash("fs", &["alice"]));
    }

    #[test]
    fn impossible_hands_are_cut_not_a_panic() {
        assert_eq!(&*hand(7, 0, 4), &[0u32; 0]);
        assert_eq!(hand(u64::MAX, 64, 99).len(), MAX_HAND_SIZE);
        assert_eq!(hand(5, 3, 9).len(), 3);
    }
}
