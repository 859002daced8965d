//! The order of versions within a group.

use std::cmp::{Ordering, Reverse};

/// Kubernetes' version priority: GA before beta before alpha, then the higher number first; names of another form
/// come last, in alphabetical order.
pub fn compare_versions(a: &str, b: &str) -> Ordering {
    match (parse(a), parse(b)) {
        (Some(a), Some(b)) => Reverse(a).cmp(&Reverse(b)),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

/// Stability (2 = GA), major and minor of `v1`, `v2beta3`; `None` for other forms.
fn parse(version: &str) -> Option<(u8, u32, u32)> {
    let rest = version.strip_prefix('v')?;
    let (major, stage) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()));
    let (stability, minor) = match stage {
        "" => return Some((2, number(major)?, 0)),
        _ => match (stage.strip_prefix("beta"), stage.strip_prefix("alpha")) {
            (Some(minor), _) => (1, minor),
            (_, Some(minor)) => (0, minor),
            _ => return None,
        },
    };
    Some((stability, number(major)?, number(minor)?))
}

/// Digits without a leading zero.
fn number(text: &str) -> Option<u32> {
    let plain = !text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit());
    if plain { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_priority() {
        let want =
            ["v10", "v2", "v1", "v11beta2", "v10beta3", "v3beta1", "v12alpha1", "v11alpha2", "foo1", "foo10", "v01"];
        let mut sorted = want;
        sorted.reverse();
        sorted.sort_by(|a, b| compare_versions(a, b));
        assert_eq!(sorted, want);
    }
}
