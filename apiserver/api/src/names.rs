//! Which names Kubernetes accepts, with its messages.
//!
//! Each check returns everything that is wrong, worded as upstream's `apimachinery` words it, since clients
//! show and tests compare these texts. The patterns are small enough to be checked by hand.

/// What is wrong with a name; never empty.
pub type Messages = Vec<String>;

const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN: &str = r"a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const QUALIFIED: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

/// A DNS label (RFC 1123): namespaces, for example.
///
/// # Errors
/// The messages.
pub fn dns_label(name: &str) -> Result<(), Messages> {
    check(&[(name.len() <= 63, &at_most(63)), (is_dns_label(name), LABEL)])
}

/// A DNS subdomain (RFC 1123): most object names.
///
/// # Errors
/// The messages.
pub fn dns_subdomain(name: &str) -> Result<(), Messages> {
    check(&[(name.len() <= 253, &at_most(253)), (name.split('.').all(is_dns_label), SUBDOMAIN)])
}

/// A qualified name, as keys of labels and annotations are: a name of at most 63 characters, optionally
/// behind a DNS subdomain and a slash.
///
/// # Errors
/// The messages.
pub fn qualified_name(text: &str) -> Result<(), Messages> {
    let (prefix, name) = match text.split_once('/') {
        Some((_, name)) if name.contains('/') => {
            return Err(vec![format!(
                "a qualified name {QUALIFIED} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )]);
        }
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    let mut messages = match prefix {
        Some("") => vec!["prefix part must be non-empty".to_owned()],
        Some(prefix) => dns_subdomain(prefix).err().into_iter().flatten().map(|m| format!("prefix part {m}")).collect(),
        None => Vec::new(),
    };
    let name_part = |message: &str| format!("name part {message}");
    let checked = check(&[
        (!name.is_empty(), &name_part("must be non-empty")),
        (name.len() <= 63, &name_part(&at_most(63))),
        (is_word(name), &name_part(QUALIFIED)),
    ]);
    messages.extend(checked.err().into_iter().flatten());
    none_or(messages)
}

/// The value of a label: empty, or a word of at most 63 characters.
///
/// # Errors
/// The messages.
pub fn label_value(value: &str) -> Result<(), Messages> {
    check(&[(value.len() <= 63, &at_most(63)), (value.is_empty() || is_word(value), LABEL_VALUE)])
}

/// A name that can stand alone in a URL path: not `.` or `..`, no `/` and no `%`.
///
/// # Errors
/// The messages.
pub fn path_segment(name: &str) -> Result<(), Messages> {
    if name == "." || name == ".." {
        return Err(vec![format!("may not be '{name}'")]);
    }
    none_or(["/", "%"].into_iter().filter(|s| name.contains(s)).map(|s| format!("may not contain '{s}'")).collect())
}

fn at_most(length: usize) -> String {
    format!("must be no more than {length} characters")
}

fn is_dns_label(s: &str) -> bool {
    is_made_of(s, |b| b.is_ascii_lowercase() || b.is_ascii_digit(), b"-")
}

fn is_word(s: &str) -> bool {
    is_made_of(s, |b| b.is_ascii_alphanumeric(), b"-_.")
}

/// Not empty, all of `edge` or `inner`, first and last of `edge`.
fn is_made_of(s: &str, edge: impl Fn(u8) -> bool, inner: &[u8]) -> bool {
    let ends = |b: Option<&u8>| b.is_some_and(|b| edge(*b));
    let bytes = s.as_bytes();
    ends(bytes.first()) && ends(bytes.last()) && bytes.iter().all(|b| edge(*b) || inner.contains(b))
}

/// The messages of the conditions that do not hold.
fn check(conditions: &[(bool, &str)]) -> Result<(), Messages> {
    none_or(conditions.iter().filter(|(holds, _)| !holds).map(|(_, message)| (*message).to_owned()).collect())
}

fn none_or(messages: Messages) -> Result<(), Messages> {
    if messages.is_empty() { Ok(()) } else { Err(messages) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart() {
        type Check = fn(&str) -> Result<(), Messages>;
        let long = |n| "a".repeat(n);
        let cases: [(Check, &[&str], &[&str]); 5] = [
            (dns_label, &["a", "0", "a-b", &long(63)], &["", "-a", "a-", "A", "a.b", "a_b", "*", &long(64)]),
            (dns_subdomain, &["a", "a.b-c.d", &long(253)], &["", ".", "a.", ".a", "a..b", "FS1", &long(254)]),
            (qualified_name, &["a", "A_b.c", "x.io/A"], &["", "/a", "a/", "a/b/c", "X.io/a", "-a", &long(64)]),
            (label_value, &["", "a", "A_b.c", &long(63)], &["-", "a b", "a/b", &long(64)]),
            (path_segment, &["a", "...", "a:b", ""], &[".", "..", "a/b", "a%b"]),
        ];
        for (check, good, bad) in cases {
            good.iter().for_each(|name| assert_eq!(check(name), Ok(()), "{name}"));
            bad.iter().for_each(|name| assert!(check(name).is_err(), "{name}"));
        }
    }

    #[test]
    fn everything_that_is_wrong_is_said() {
        assert_eq!(path_segment("/%").unwrap_err(), ["may not contain '/'", "may not contain '%'"]);
        assert_eq!(qualified_name("/").unwrap_err().len(), 3);
        assert_eq!(dns_label(&"A".repeat(64)).unwrap_err(), ["must be no more than 63 characters", LABEL]);
    }
}
