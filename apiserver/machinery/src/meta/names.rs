//! Names after `generateName`.

/// No vowels and no digits that look like letters: no words, no confusion.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
/// So many characters of the base are kept, and so many are added: 63 in sum, the longest label.
const BASE: usize = 58;
const SUFFIX: usize = 5;

/// `base`, cut, and five random characters.
pub(super) fn generate(base: &str) -> String {
    let mut name: String = base.chars().take(BASE).collect();
    let random = uuid::Uuid::new_v4().as_u128();
    // The low 62 bits of a version 4 UUID are all random; five steps use 24 of them.
    let mut rest = random & ((1 << 62) - 1);
    for _ in 0..SUFFIX {
        let at = usize::try_from(rest % ALPHABET.len() as u128).unwrap_or_default();
        name.extend(ALPHABET.get(at).map(|b| char::from(*b)));
        rest /= ALPHABET.len() as u128;
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_and_extended() {
        let name = generate(&"g".repeat(70));
        assert_eq!(name.len(), 63);
        assert!(name.bytes().skip(BASE).all(|b| ALPHABET.contains(&b)));
        assert_ne!(generate("a-"), generate("a-"));
    }
}
