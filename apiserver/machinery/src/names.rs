//! Rules for names, label keys and values, with upstream's texts. No regular expressions: one pass each.

/// What an object may be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    /// RFC 1123 subdomain, at most 253 bytes.
    Subdomain,
    /// RFC 1123 label, at most 63 bytes.
    Label,
    /// Only this name: the object is a singleton.
    Fixed(&'static str),
}

impl NameRule {
    /// What is wrong with `name`; `None` when nothing is.
    pub fn check(self, name: &str) -> Option<String> {
        match self {
            Self::Subdomain => subdomain(name),
            Self::Label => label(name),
            Self::Fixed(only) => (name != only).then(|| format!("must be {only}")),
        }
    }
}

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
    and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must \
    start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const QUALIFIED: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
    alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
    '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or \
    '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex \
    used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const CONFIG_KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. \
    'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";

fn too_long(max: usize) -> String {
    format!("must be no more than {max} bytes")
}

fn is_label(s: &str) -> bool {
    let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let b = s.as_bytes();
    edge(b.first()) && edge(b.last()) && b.iter().all(|b| edge(Some(b)) || *b == b'-')
}

/// `([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]`
fn is_qualified_part(s: &str) -> bool {
    let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let b = s.as_bytes();
    edge(b.first()) && edge(b.last()) && b.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
}

/// What is wrong with an RFC 1123 subdomain.
pub fn subdomain(s: &str) -> Option<String> {
    if s.len() > 253 {
        Some(too_long(253))
    } else if !s.split('.').all(is_label) {
        Some(SUBDOMAIN.into())
    } else {
        None
    }
}

/// What is wrong with an RFC 1123 label.
pub fn label(s: &str) -> Option<String> {
    if s.len() > 63 {
        Some(too_long(63))
    } else if !is_label(s) {
        Some(LABEL.into())
    } else {
        None
    }
}

/// What is wrong with a qualified name such as `example.com/Name`: label keys, finalizers.
pub fn qualified(s: &str) -> Option<String> {
    let (prefix, name) = match s.split_once('/') {
        None => (None, s),
        Some((prefix, name)) if !name.contains('/') => (Some(prefix), name),
        Some(_) => {
            return Some(format!(
                "a qualified name {QUALIFIED} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            ));
        }
    };
    match prefix {
        Some("") => return Some("prefix part must be non-empty".into()),
        Some(prefix) => {
            if let Some(wrong) = subdomain(prefix) {
                return Some(format!("prefix part {wrong}"));
            }
        }
        None => {}
    }
    if name.is_empty() {
        Some("name part must be non-empty".into())
    } else if name.len() > 63 {
        Some(format!("name part {}", too_long(63)))
    } else if !is_qualified_part(name) {
        Some(format!("name part {QUALIFIED}"))
    } else {
        None
    }
}

/// What is wrong with a label's value.
pub fn label_value(s: &str) -> Option<String> {
    if s.len() > 63 {
        Some(too_long(63))
    } else if !s.is_empty() && !is_qualified_part(s) {
        Some(LABEL_VALUE.into())
    } else {
        None
    }
}

/// What is wrong with a key of a ConfigMap or Secret.
pub fn config_key(s: &str) -> Option<String> {
    let fine = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    match s {
        _ if s.len() > 253 => Some(too_long(253)),
        _ if s.is_empty() || !s.bytes().all(fine) => Some(CONFIG_KEY.into()),
        "." => Some("must not be '.'".into()),
        ".." => Some("must not be '..'".into()),
        _ if s.starts_with("..") => Some("must not start with '..'".into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subdomains_and_labels() {
        for good in ["a", "a.b", "a-b.c0", &"a".repeat(253)] {
            assert_eq!(subdomain(good), None, "{good}");
        }
        for bad in ["", "A", "a_b", ".a", "a.", "a..b", "-a", "a-", "a/b", &"a".repeat(254)] {
            assert!(subdomain(bad).is_some(), "{bad}");
        }
        assert_eq!(label(&"a".repeat(63)), None);
        assert!(label(&"a".repeat(64)).is_some());
        assert!(label("a.b").is_some());
    }

    #[test]
    fn qualified_names() {
        for good in ["a", "A_b.c", "example.com/Name", &format!("{}/{}", "a".repeat(253), "b".repeat(63))] {
            assert_eq!(qualified(good), None, "{good}");
        }
        for bad in ["", "/a", "a/", "a/b/c", "Ex/a", "-a", "a b", &"b".repeat(64)] {
            assert!(qualified(bad).is_some(), "{bad}");
        }
    }

    #[test]
    fn config_keys() {
        for good in ["a", ".a", "A_-.z", "a..b"] {
            assert_eq!(config_key(good), None, "{good}");
        }
        for bad in ["", ".", "..", "..a", "a/b", "ä", &"a".repeat(254)] {
            assert!(config_key(bad).is_some(), "{bad}");
        }
    }
}
