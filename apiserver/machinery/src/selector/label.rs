//! Label selectors: `a=b,c in (d,e),!f,g>1`. The grammar and the texts are those of upstream's
//! `labels.Parse`: a lexer whose words `in` and `notin` are names where a name is expected.

use apiserver_api::{Status, names};
use serde_json::Value;

use crate::object;

/// Most requirements of one selector. Upstream has no limit; every object that is looked at costs up to so many comparisons.
const REQUIREMENTS_MAX: usize = 1000;

/// A parsed label selector; the default one matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    /// In order, each once.
    requirements: Vec<Requirement>,
    /// How many of them need a label with their key.
    needs: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Requirement {
    key: String,
    operator: Operator,
    /// In order, each once.
    values: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
    Greater,
    Less,
}

impl LabelSelector {
    /// Reads a selector.
    ///
    /// # Errors
    /// 400 with upstream's text.
    pub fn parse(text: &str) -> Result<Self, Status> {
        let mut requirements = Parser::new(text).selector().map_err(Status::bad_request)?;
        requirements.iter_mut().for_each(|requirement| {
            requirement.values.sort_unstable();
            requirement.values.dedup();
        });
        requirements.sort_unstable();
        requirements.dedup();
        if requirements.len() > REQUIREMENTS_MAX {
            let found = requirements.len();
            return Err(Status::bad_request(format!(
                "the label selector has {found} requirements; want {REQUIREMENTS_MAX} at most: values of one label fit into \
                 one, as in \"name in (a,b)\""
            )));
        }
        let needs = requirements.iter().filter(|requirement| requirement.needs_label()).count();
        Ok(Self { requirements, needs })
    }

    /// Whether everything matches.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Whether the labels of `object` match.
    pub fn matches(&self, object: &Value) -> bool {
        let labels = object::get(object, &["metadata", "labels"]).and_then(Value::as_object);
        self.matches_labels(labels.into_iter().flatten().filter_map(|(key, value)| Some((&**key, value.as_str()?))))
    }

    /// Labels without which nothing matches: their keys, and the values of which each must have one (none: any).
    pub fn wanted(&self) -> impl Iterator<Item = (&str, &[String])> {
        let needing = self.requirements.iter().filter(|r| r.needs_label());
        needing.map(|r| (&*r.key, if r.operator == Operator::In { &*r.values } else { &[] }))
    }

    /// Whether labels match, each key of which comes once. Each label is looked at once, however long the selector is.
    pub fn matches_labels<'a>(&self, labels: impl IntoIterator<Item = (&'a str, &'a str)>) -> bool {
        let mut needs = self.needs;
        for (key, value) in labels {
            let start = self.requirements.partition_point(|r| *r.key < *key);
            for requirement in self.requirements.iter().skip(start).take_while(|r| r.key == key) {
                if !requirement.matches(value) {
                    return false;
                }
                needs -= usize::from(requirement.needs_label());
            }
        }
        needs == 0
    }
}

impl Requirement {
    /// Whether an object without a label with its key does not match.
    fn needs_label(&self) -> bool {
        !matches!(self.operator, Operator::NotIn | Operator::DoesNotExist)
    }

    fn matches(&self, value: &str) -> bool {
        let is_one_of = || self.values.binary_search_by(|v| (**v).cmp(value)).is_ok();
        let number = || value.parse::<i64>().ok().zip(self.values.first().and_then(|x| x.parse::<i64>().ok()));
        match self.operator {
            Operator::In => is_one_of(),
            Operator::NotIn => !is_one_of(),
            Operator::Greater => number().is_some_and(|(v, x)| v > x),
            Operator::Less => number().is_some_and(|(v, x)| v < x),
            Operator::Exists => true,
            Operator::DoesNotExist => false,
        }
    }

    /// What is wrong with it.
    fn check(&self) -> Result<(), String> {
        if let Err(wrong) = names::qualified_name(&self.key) {
            return Err(format!("key: Invalid value: {:?}: {}", self.key, wrong.join("; ")));
        }
        if self.values.is_empty() && matches!(self.operator, Operator::In | Operator::NotIn) {
            return Err("values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty".into());
        }
        for (i, value) in self.values.iter().enumerate() {
            if matches!(self.operator, Operator::Greater | Operator::Less) && value.parse::<i64>().is_err() {
                let wrong = "for 'Gt', 'Lt' operators, the value must be an integer";
                return Err(format!("values[{i}]: Invalid value: {value:?}: {wrong}"));
            }
            if let Err(wrong) = names::label_value(value) {
                return Err(format!("values[{i}][{}]: Invalid value: {value:?}: {}", self.key, wrong.join("; ")));
            }
        }
        Ok(())
    }
}

/// A token; `""` is the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    Symbol(&'a str),
    End,
}

impl<'a> Token<'a> {
    fn text(self) -> &'a str {
        match self {
            Self::Word(text) | Self::Symbol(text) => text,
            Self::End => "",
        }
    }
}

struct Parser<'a> {
    rest: &'a str,
}

const SYMBOLS: &[&str] = &["==", "!=", "=", "!", "(", ")", ",", ">", "<"];

fn found(token: Token<'_>, expected: &str) -> String {
    format!("found '{}', expected: {expected}", token.text())
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Self {
        Self { rest: text }
    }

    fn peek(&mut self) -> Token<'a> {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
        if self.rest.is_empty() {
            return Token::End;
        }
        if let Some(symbol) = SYMBOLS.iter().find(|s| self.rest.starts_with(**s)) {
            let (symbol, _) = self.rest.split_at(symbol.len());
            return Token::Symbol(symbol);
        }
        let end = self.rest.find(|c: char| " \t\r\n=!(),><".contains(c)).unwrap_or(self.rest.len());
        let (word, _) = self.rest.split_at(end);
        Token::Word(word)
    }

    fn next(&mut self) -> Token<'a> {
        let token = self.peek();
        self.rest = self.rest.get(token.text().len()..).unwrap_or_default();
        token
    }

    fn selector(&mut self) -> Result<Vec<Requirement>, String> {
        let mut requirements = Vec::new();
        loop {
            match self.peek() {
                Token::End => return Ok(requirements),
                Token::Word(_) | Token::Symbol("!") => {
                    let wrong = |e| format!("unable to parse requirement: {e}");
                    let requirement = self.requirement().map_err(wrong)?;
                    requirement.check().map_err(wrong)?;
                    requirements.push(requirement);
                }
                other => return Err(found(other, "!, identifier, or 'end of string'")),
            }
            match self.next() {
                Token::End => return Ok(requirements),
                Token::Symbol(",") => match self.peek() {
                    Token::Word(_) | Token::Symbol("!") => {}
                    other => return Err(found(other, "identifier after ','")),
                },
                other => return Err(found(other, "',' or 'end of string'")),
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let negated = self.peek() == Token::Symbol("!");
        if negated {
            self.next();
        }
        let key = match self.next() {
            Token::Word(key) => key.to_owned(),
            other => return Err(found(other, "identifier")),
        };
        if negated {
            return Ok(Requirement { key, operator: Operator::DoesNotExist, values: vec![] });
        }
        if matches!(self.peek(), Token::End | Token::Symbol(",")) {
            return Ok(Requirement { key, operator: Operator::Exists, values: vec![] });
        }
        let (operator, is_set) = match self.next() {
            Token::Word("in") => (Operator::In, true),
            Token::Word("notin") => (Operator::NotIn, true),
            Token::Symbol("=" | "==") => (Operator::In, false),
            Token::Symbol("!=") => (Operator::NotIn, false),
            Token::Symbol(">") => (Operator::Greater, false),
            Token::Symbol("<") => (Operator::Less, false),
            other => return Err(found(other, "in, notin, =, ==, !=, gt, lt")),
        };
        let values = if is_set { self.set()? } else { vec![self.exact_value()?] };
        Ok(Requirement { key, operator, values })
    }

    fn exact_value(&mut self) -> Result<String, String> {
        match self.peek() {
            Token::End | Token::Symbol(",") => Ok(String::new()),
            _ => match self.next() {
                Token::Word(value) => Ok(value.to_owned()),
                other => Err(found(other, "identifier")),
            },
        }
    }

    /// `(a,b)`; an empty place between commas is the empty value.
    fn set(&mut self) -> Result<Vec<String>, String> {
        match self.next() {
            Token::Symbol("(") => {}
            other => return Err(found(other, "'('")),
        }
        match self.peek() {
            Token::Symbol(")") => {
                self.next();
                return Ok(vec![]);
            }
            Token::Word(_) | Token::Symbol(",") => {}
            other => return Err(found(other, "',', ')' or identifier")),
        }
        let mut values = Vec::new();
        loop {
            let value = match self.peek() {
                Token::Word(value) => {
                    self.next();
                    value
                }
                Token::Symbol("," | ")") => "",
                other => return Err(found(other, "',', or identifier")),
            };
            values.push(value.to_owned());
            match self.next() {
                Token::Symbol(",") => {}
                Token::Symbol(")") => return Ok(values),
                other => return Err(found(other, "',' or ')'")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn matches(text: &str) -> bool {
        let object = json!({"metadata": {"labels": {"a": "b", "n": "5", "e": "", "in": "x"}}});
        LabelSelector::parse(text).unwrap_or_else(|e| panic!("{text}: {e}")).matches(&object)
    }

    #[test]
    fn what_matches() {
        for text in [
            "",
            "  ",
            "a",
            "!z",
            "a=b",
            "a==b",
            "a = b",
            "a!=c",
            "z!=c",
            "a in (b,c)",
            "a in(b)",
            "a notin (c)",
            "z notin (c)",
            "n>4",
            "n<6",
            "e=",
            "e",
            "e in (,x)",
            "e in (x,)",
            "in",
            "in=x",
            "in in (x)",
            "a,!z,n>4",
        ] {
            assert!(matches(text), "{text}");
        }
        for text in ["z", "!a", "a=c", "a!=b", "a in (c)", "z in (c)", "a notin (b)", "n>5", "n<5", "a>1", "z>1"] {
            assert!(!matches(text), "{text}");
        }
    }

    #[test]
    fn errors_have_upstreams_text() {
        for (text, want) in [
            ("a===b", "unable to parse requirement: found '=', expected: identifier"),
            (",", "found ',', expected: !, identifier, or 'end of string'"),
            ("a,", "found '', expected: identifier after ','"),
            ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
            ("a=b c", "found 'c', expected: ',' or 'end of string'"),
            ("a in b", "unable to parse requirement: found 'b', expected: '('"),
            ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'"),
            ("a in (", "unable to parse requirement: found '', expected: ',', ')' or identifier"),
            ("!", "unable to parse requirement: found '', expected: identifier"),
        ] {
            let status = LabelSelector::parse(text).unwrap_err();
            assert_eq!((status.code, &*status.message), (400, want), "{text}");
        }
        for text in ["a in ()", "n>x", "-a", "a=-b", "a/b/c=d"] {
            assert!(LabelSelector::parse(text).unwrap_err().message.contains("Invalid value"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "[a-z0-9=!(),<> äin/.-]*") {
            let _ = LabelSelector::parse(&text);
        }

        #[test]
        fn a_selector_is_the_and_of_its_requirements(
            parts in prop::collection::vec("!?[a-d]|[a-d](=|!=|>)[0-9]|[a-d] (in|notin) \\([0-9],[0-9]\\)", 1..6),
            labels in prop::collection::btree_map("[a-d]", "[0-9]", 0..4),
        ) {
            let object = json!({"metadata": {"labels": labels}});
            let all = LabelSelector::parse(&parts.join(",")).unwrap().matches(&object);
            let each = parts.iter().all(|part| LabelSelector::parse(part).unwrap().matches(&object));
            prop_assert_eq!(all, each);
        }

        #[test]
        fn a_set_is_the_or_of_its_values(values in prop::collection::vec("[a-c]{0,2}", 1..4), label in "[a-c]{0,2}") {
            // `()` is the empty set, not the set of the empty value.
            prop_assume!(values != [""]);
            let object = json!({"metadata": {"labels": {"k": label}}});
            let set = LabelSelector::parse(&format!("k in ({})", values.join(","))).unwrap().matches(&object);
            let none = LabelSelector::parse(&format!("k notin ({})", values.join(","))).unwrap().matches(&object);
            prop_assert_eq!(set, values.contains(&label));
            prop_assert_eq!(set, !none);
        }
    }
}
