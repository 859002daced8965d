//! Field selectors: `metadata.name=a,status.phase!=Active`.

use apiserver_api::Status;
use serde_json::Value;

use crate::{object, resource::Resource};

/// A parsed field selector; the default one matches everything.
#[derive(Clone, Debug, Default)]
pub struct FieldSelector {
    terms: Vec<Term>,
}

#[derive(Clone, Debug)]
struct Term {
    field: &'static str,
    value_of: for<'a> fn(&'a Value) -> &'a str,
    equal: bool,
    value: String,
}

impl FieldSelector {
    /// Reads a selector over the fields of `resource`. Empty terms are skipped, as upstream does.
    ///
    /// # Errors
    /// 400 with upstream's text.
    pub fn parse(resource: &Resource, text: &str) -> Result<Self, Status> {
        let mut terms = Vec::new();
        for part in split(text).filter(|p| !p.is_empty()) {
            let Some((field, equal, value)) = split_term(part) else {
                return Err(Status::bad_request(format!("invalid selector: '{text}'; can't understand '{part}'")));
            };
            let value = unescape(value)?;
            let (field, value_of) = find(resource, field)?;
            terms.push(Term { field, value_of, equal, value });
        }
        Ok(Self { terms })
    }

    /// Whether everything matches.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Whether `object` matches.
    pub fn matches(&self, object: &Value) -> bool {
        self.terms.iter().all(|t| ((t.value_of)(object) == t.value) == t.equal)
    }

    /// The same for an object of which only the place is known; `None` when that does not decide it.
    pub fn matches_place(&self, name: &str, namespace: &str) -> Option<bool> {
        let mut all = true;
        for term in &self.terms {
            let value = match term.field {
                "metadata.name" => name,
                "metadata.namespace" => namespace,
                _ => {
                    all = false;
                    continue;
                }
            };
            if (value == term.value) != term.equal {
                return Some(false);
            }
        }
        all.then_some(true)
    }

    /// The one name that can match, so that the key can be read instead of the collection.
    pub fn exact_name(&self) -> Option<&str> {
        self.terms.iter().find(|t| t.equal && t.field == "metadata.name").map(|t| t.value.as_str())
    }
}

type Accessor = for<'a> fn(&'a Value) -> &'a str;

fn find(resource: &Resource, name: &str) -> Result<(&'static str, Accessor), Status> {
    match name {
        "metadata.name" => return Ok(("metadata.name", object::name)),
        "metadata.namespace" if resource.is_namespaced() => return Ok(("metadata.namespace", object::namespace)),
        _ => {}
    }
    if let Some(field) = resource.selectable.iter().find(|f| f.name == name) {
        return Ok((if field.name == "name" { "metadata.name" } else { field.name }, field.value));
    }
    let namespace = resource.is_namespaced().then_some("metadata.namespace");
    let own = resource.selectable.iter().map(|f| f.name);
    let known: Vec<String> =
        ["metadata.name"].into_iter().chain(namespace).chain(own).map(|f| format!("\"{f}\"")).collect();
    Err(Status::bad_request(format!("{name:?} is not a known field selector: only {}", known.join(", "))))
}

/// Splits at commas that are not escaped.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut escaped = false;
    text.split(move |c| {
        let splits = c == ',' && !escaped;
        escaped = c == '\\' && !escaped;
        splits
    })
}

/// The field, whether it must be equal, and the still escaped value.
fn split_term(term: &str) -> Option<(&str, bool, &str)> {
    let mut escaped = false;
    for (i, c) in term.char_indices() {
        if escaped {
            escaped = false;
            continue;
        }
        escaped = c == '\\';
        let (before, rest) = term.split_at(i);
        for (operator, equal) in [("!=", false), ("==", true), ("=", true)] {
            if let Some(value) = rest.strip_prefix(operator) {
                return Some((before, equal, value));
            }
        }
    }
    None
}

fn unescape(value: &str) -> Result<String, Status> {
    let mut plain = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => plain.push(c),
                other => {
                    let sequence: String = other.into_iter().collect();
                    return Err(Status::bad_request(format!(
                        "invalid field selector: invalid escape sequence: \\{sequence}"
                    )));
                }
            },
            ',' | '=' => {
                return Err(Status::bad_request(format!("invalid field selector: unescaped character in value: {c}")));
            }
            c => plain.push(c),
        }
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::builtin;

    fn secrets() -> &'static Resource {
        builtin::find("", "v1", "secrets").unwrap()
    }

    #[test]
    fn terms_match() {
        let object = json!({"metadata": {"name": "a", "namespace": "n"}, "type": "x,y=z\\"});
        for (text, want) in [
            ("", true),
            (",,", true),
            ("metadata.name=a", true),
            ("metadata.name==a,metadata.namespace!=m", true),
            ("metadata.name!=a", false),
            ("type=x\\,y\\=z\\\\", true),
            ("type=", false),
        ] {
            let selector = FieldSelector::parse(secrets(), text).unwrap();
            assert_eq!(selector.matches(&object), want, "{text}");
            let known = selector.matches_place("a", "n");
            assert!(known == Some(want) || (known.is_none() && text.starts_with("type")), "{text}: {known:?}");
        }
    }

    #[test]
    fn the_exact_name() {
        let parse = |t| FieldSelector::parse(builtin::find("", "v1", "namespaces").unwrap(), t).unwrap();
        assert_eq!(parse("metadata.name=a").exact_name(), Some("a"));
        assert_eq!(parse("name=a").exact_name(), Some("a"));
        assert_eq!(parse("metadata.name!=a").exact_name(), None);
    }

    #[test]
    fn errors_have_upstreams_text() {
        for (text, want) in [
            ("foo", "invalid selector: 'foo'; can't understand 'foo'"),
            ("metadata.name=a=b", "invalid field selector: unescaped character in value: ="),
            ("metadata.name=a\\b", "invalid field selector: invalid escape sequence: \\b"),
            ("metadata.name=a\\", "invalid field selector: invalid escape sequence: \\"),
        ] {
            let status = FieldSelector::parse(secrets(), text).unwrap_err();
            assert_eq!((status.code, &*status.message), (400, want), "{text}");
        }
        let maps = builtin::find("", "v1", "configmaps").unwrap();
        let status = FieldSelector::parse(maps, "data.k=v").unwrap_err();
        assert_eq!(
            status.message,
            "\"data.k\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
        );
    }

    proptest! {
        #[test]
        fn any_value_can_be_selected(value in ".*") {
            let escaped = value.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=");
            let selector = FieldSelector::parse(secrets(), &format!("type={escaped}")).unwrap();
            let secret = json!({ "type": value });
            prop_assert!(selector.matches(&secret));
        }

        #[test]
        fn nothing_panics(text in "[a-z.=!,\\\\ä]*") {
            let _ = FieldSelector::parse(secrets(), &text);
        }
    }
}
