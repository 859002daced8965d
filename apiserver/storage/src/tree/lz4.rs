//! LZ4 blocks of small texts behind a fixed dictionary.
//!
//! What an encoder looks up of the dictionary is the same for every text, so it is made once: an encoder that begins with
//! an empty table spends several times what a text of some hundred bytes costs on reading the dictionary anew. It also
//! pays to look harder: each position of the dictionary is known, by four bytes and by eight, and of all matches the
//! longest is taken.
//!
//! Any decoder of LZ4 reads the result with the same dictionary. Texts that do not fit into its window together with the
//! dictionary are left to `lz4_flex`.

use lz4_flex::block::{compress_into_with_dict, get_maximum_output_size};

/// The format's: shortest match, literals at the end of a block, and how far before its end the last match begins.
const MATCH_MIN: usize = 4;
const LITERALS_LAST: usize = 5;
const MATCH_BEFORE_END: usize = 12;
/// Reach of an offset.
const WINDOW: usize = 0xffff;
/// Logarithms of the entries of both tables. That of the text is emptied for each.
const KNOWN_BITS: u32 = 14;
const OWN_BITS: u32 = 10;
/// Literals in a row after which every second position is looked at, and so on.
const PATIENCE: usize = 64;

/// Compresses behind one dictionary.
pub(super) struct Encoder {
    /// The dictionary, followed by the text at hand.
    text: Vec<u8>,
    dictionary: &'static [u8],
    known: Table<KNOWN_BITS>,
    /// The same by eight bytes: of what begins alike, what goes on alike.
    long: Table<KNOWN_BITS>,
    own: Table<OWN_BITS>,
}

/// Where a hash of four bytes was seen last. Places count from one: 0 is nowhere.
struct Table<const BITS: u32>(Vec<u16>);

impl<const BITS: u32> Table<BITS> {
    fn new() -> Self {
        Self(vec![0; 1 << BITS])
    }

    fn slot(word: u32) -> usize {
        (word.wrapping_mul(2_654_435_761) >> (32 - BITS)) as usize
    }

    fn get(&self, word: u32) -> Option<usize> {
        self.0.get(Self::slot(word)).and_then(|place| usize::from(*place).checked_sub(1))
    }

    fn put(&mut self, word: u32, at: usize) {
        if let (Some(slot), Ok(place)) = (self.0.get_mut(Self::slot(word)), u16::try_from(at + 1)) {
            *slot = place;
        }
    }
}

impl Encoder {
    pub(super) fn new(dictionary: &'static [u8]) -> Self {
        let (mut known, mut long) = (Table::new(), Table::new());
        for at in 0..dictionary.len() {
            word(dictionary, at).into_iter().for_each(|word| known.put(word, at));
            long_word(dictionary, at).into_iter().for_each(|word| long.put(word, at));
        }
        Self { text: dictionary.to_vec(), dictionary, known, long, own: Table::new() }
    }

    /// Appends the text as a block; false if that is not shorter, and what was appended is of no use.
    pub(super) fn compress(&mut self, text: &[u8], out: &mut Vec<u8>) -> bool {
        let before = out.len();
        if text.len() + self.dictionary.len() < WINDOW {
            self.text.truncate(self.dictionary.len());
            self.text.extend_from_slice(text);
            self.own.0.fill(0);
            self.block(out);
        } else {
            out.resize(before + get_maximum_output_size(text.len()), 0);
            let room = out.get_mut(before..).unwrap_or_default();
            let length = compress_into_with_dict(text, room, self.dictionary).unwrap_or(text.len());
            out.truncate(before + length);
        }
        out.len() - before < text.len()
    }

    fn block(&mut self, out: &mut Vec<u8>) {
        let (text, mut at, mut literals) = (&*self.text, self.dictionary.len(), self.dictionary.len());
        while at + MATCH_BEFORE_END <= text.len()
            && let Some(word) = word(text, at)
        {
            let long = long_word(text, at).and_then(|w| self.long.get(w));
            let candidates = [self.own.get(word), long, self.known.get(word)].into_iter().flatten();
            let longest = candidates.map(|from| (common(text, from, at), from)).max();
            self.own.put(word, at);
            let Some((length, from)) = longest.filter(|(length, _)| *length >= MATCH_MIN) else {
                at += 1 + (at - literals) / PATIENCE;
                continue;
            };
            let back = common_before(text, from, at, literals);
            write(out, slice(text, literals, at - back), Some((at - from, length + back)));
            at += length;
            literals = at;
        }
        write(out, slice(text, literals, text.len()), None);
    }
}

fn slice(text: &[u8], from: usize, to: usize) -> &[u8] {
    text.get(from..to).unwrap_or_default()
}

fn word(text: &[u8], at: usize) -> Option<u32> {
    text.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

/// What stands for eight bytes.
fn long_word(text: &[u8], at: usize) -> Option<u32> {
    let long = text.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))?;
    Some((long.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32)
}

/// Equal bytes from two places on, as far as a match may go.
fn common(text: &[u8], from: usize, at: usize) -> usize {
    let (old, new) = (slice(text, from, text.len()), slice(text, at, text.len() - LITERALS_LAST));
    let (words, rest) = new.as_chunks::<8>();
    let mut length = 0;
    for (a, b) in old.as_chunks::<8>().0.iter().zip(words) {
        let different = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if different != 0 {
            return length + (different.trailing_zeros() / 8) as usize;
        }
        length += 8;
    }
    // `old` is the longer one.
    length + slice(old, length, old.len()).iter().zip(rest).take_while(|(a, b)| a == b).count()
}

/// Equal bytes in front of two places, as far as there are literals.
fn common_before(text: &[u8], from: usize, at: usize, literals: usize) -> usize {
    let (old, new) = (slice(text, 0, from), slice(text, literals, at));
    old.iter().rev().zip(new.iter().rev()).take_while(|(a, b)| a == b).count()
}

/// A sequence: literals, then a match (offset and length) unless it is the last one.
fn write(out: &mut Vec<u8>, literals: &[u8], found: Option<(usize, usize)>) {
    let length = found.map_or(0, |(_, length)| length - MATCH_MIN);
    let nibble = |n: usize| n.min(15) as u8;
    out.push(nibble(literals.len()) << 4 | nibble(length));
    write_rest(out, literals.len());
    out.extend_from_slice(literals);
    if let Some((offset, _)) = found {
        out.extend_from_slice(&(offset as u16).to_le_bytes());
        write_rest(out, length);
    }
}

/// What of a number does not fit into four bits.
fn write_rest(out: &mut Vec<u8>, number: usize) {
    let Some(mut rest) = number.checked_sub(15) else { return };
    while rest >= 255 {
        out.push(255);
        rest -= 255;
    }
    out.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use lz4_flex::block::{compress_with_dict, decompress_with_dict};
    use proptest::prelude::*;

    use super::*;

    const DICTIONARY: &[u8] = include_bytes!("dictionary.json");

    /// Pieces of the dictionary, of other pieces and of noise, of any length.
    fn text() -> impl Strategy<Value = Vec<u8>> {
        let known = (0..DICTIONARY.len(), 0..300_usize)
            .prop_map(|(from, length)| DICTIONARY[from..DICTIONARY.len().min(from + length)].to_vec());
        let noise = prop::collection::vec(any::<u8>(), 0..80);
        let run = (any::<u8>(), 0..700_usize).prop_map(|(byte, length)| vec![byte; length]);
        let pieces = prop::collection::vec(prop_oneof![known, noise, run], 0..12);
        (pieces, prop::collection::vec(any::<prop::sample::Index>(), 0..8)).prop_map(|(mut pieces, again)| {
            if !pieces.is_empty() {
                again.iter().for_each(|index| pieces.push(index.get(&pieces).clone()));
            }
            pieces.concat()
        })
    }

    proptest! {
        #[test]
        fn any_decoder_reads_it(texts in prop::collection::vec(text(), 1..4)) {
            // One encoder for all: nothing of a text is left for the next.
            let mut encoder = Encoder::new(DICTIONARY);
            for text in texts {
                let (mut block, mut again) = (Vec::new(), Vec::new());
                let is_shorter = encoder.compress(&text, &mut block);
                prop_assert_eq!(is_shorter, block.len() < text.len());
                prop_assert_eq!(decompress_with_dict(&block, text.len(), DICTIONARY).unwrap(), &*text);
                encoder.compress(&text, &mut again);
                prop_assert_eq!(again, block);
            }
        }
    }

    #[test]
    fn what_is_large_or_noise_comes_back_too() {
        let large: Vec<u8> = DICTIONARY.iter().copied().cycle().take(3 * WINDOW).collect();
        let (mut encoder, mut block) = (Encoder::new(DICTIONARY), Vec::new());
        assert!(encoder.compress(&large, &mut block));
        assert_eq!(decompress_with_dict(&block, large.len(), DICTIONARY).unwrap(), large);
        let mut state = 1_u64;
        let noise = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        });
        assert!(!encoder.compress(&noise.take(1000).collect::<Vec<u8>>(), &mut block));
    }

    /// The reason for an encoder of our own, besides its speed.
    #[test]
    fn it_is_smaller_than_what_begins_with_an_empty_table() {
        let object = r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"creationTimestamp":"2031-01-02T03:04:05Z","managedFields":[{"apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:data":{".":{},"f:color":{}}},"manager":"kubectl-create","operation":"Update","time":"2031-01-02T03:04:05Z"}],"name":"shop","namespace":"default","uid":"c75b3371-669f-4f69-9c24-392487a15d26"},"data":{"color":"blue"}}"#;
        let mut block = Vec::new();
        Encoder::new(DICTIONARY).compress(object.as_bytes(), &mut block);
        let (ours, theirs) = (block.len(), compress_with_dict(object.as_bytes(), DICTIONARY).len());
        assert!(ours < theirs, "{ours} and {theirs} bytes of {}", object.len());
    }
}
