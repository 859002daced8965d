//! `DeleteOptions`: from the body when there is one, else from the query (api-server.md 2.6).

use apiserver_api::{
    Status,
    field::{Error, Path},
    query_pairs,
};
use serde_json::{Value, json};

use super::{check, parse_bool, write::check_dry_run};
use crate::object::{get, set, text};

/// What becomes of the objects that the deleted one owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// They are deleted afterwards.
    Background,
    /// They are deleted first.
    Foreground,
    /// They stay.
    Orphan,
}

/// Parsed and checked delete options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// Do everything but write.
    pub dry_run: bool,
    /// `None`: the kind's default, Background for all of ours.
    pub propagation: Option<Propagation>,
    /// The object must have this uid.
    pub uid: Option<String>,
    /// The object must be at this version.
    pub resource_version: Option<String>,
}

impl DeleteOptions {
    /// Reads a decoded body (see [`crate::decode`]) or, without one, the raw query. A body replaces the query
    /// as a whole, except that `dryRun` holds if either says so: nobody wants to delete by mistake.
    ///
    /// # Errors
    /// 422 with kind `DeleteOptions`.
    pub fn parse(body: Option<&Value>, query: &str) -> Result<Self, Status> {
        let from_query = query_object(query);
        let object = body.unwrap_or(&from_query);
        let mut errors = Vec::new();
        let policy = text(object, &["propagationPolicy"]);
        let orphans = get(object, &["orphanDependents"]).and_then(Value::as_bool);
        if orphans.is_some() && !policy.is_empty() {
            let why = "orphanDependents and deletionPropagation cannot be both set";
            errors.push(Error::invalid(&Path::new("propagationPolicy"), json!(policy), why));
        }
        let propagation = match (policy, orphans) {
            ("Background", _) | ("", Some(false)) => Some(Propagation::Background),
            ("Foreground", _) => Some(Propagation::Foreground),
            ("Orphan", _) | ("", Some(true)) => Some(Propagation::Orphan),
            ("", None) => None,
            (other, _) => {
                let supported = &["Foreground", "Background", "Orphan", "nil"];
                errors.push(Error::not_supported(&Path::new("propagationPolicy"), json!(other), supported));
                None
            }
        };
        let dry_runs = |o: &Value| -> Vec<String> {
            let items = o.get("dryRun").and_then(Value::as_array).into_iter().flatten();
            items.map(|v| v.as_str().unwrap_or_default().to_owned()).collect()
        };
        let mut all = dry_runs(object);
        if body.is_some() {
            all.extend(dry_runs(&from_query));
        }
        let dry_run = check_dry_run(&all, &mut errors);
        check("DeleteOptions", errors)?;
        let precondition = |field| get(object, &["preconditions", field]).and_then(Value::as_str).map(str::to_owned);
        let (uid, resource_version) = (precondition("uid"), precondition("resourceVersion"));
        Ok(Self { dry_run, propagation, uid, resource_version })
    }
}

fn query_object(query: &str) -> Value {
    let (mut object, mut dry_runs) = (json!({}), Vec::new());
    for (key, value) in query_pairs(query) {
        match &*key {
            "propagationPolicy" => set(&mut object, "propagationPolicy", &*value),
            "orphanDependents" if !value.is_empty() => set(&mut object, "orphanDependents", parse_bool(&value)),
            "dryRun" => dry_runs.push(json!(value)),
            _ => {}
        }
    }
    set(&mut object, "dryRun", dry_runs);
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_and_query() {
        let body = json!({"propagationPolicy": "Orphan", "preconditions": {"uid": "u"}});
        let options = DeleteOptions::parse(Some(&body), "propagationPolicy=Foreground&dryRun=All").unwrap();
        assert_eq!(options.propagation, Some(Propagation::Orphan));
        assert_eq!(options.uid.as_deref(), Some("u"));
        assert!(options.dry_run);
        let options = DeleteOptions::parse(None, "propagationPolicy=Foreground").unwrap();
        assert_eq!((options.propagation, options.dry_run), (Some(Propagation::Foreground), false));
        assert_eq!(DeleteOptions::parse(None, "").unwrap(), DeleteOptions::default());
    }

    #[test]
    fn refusals_have_upstreams_text() {
        let status = DeleteOptions::parse(None, "propagationPolicy=Foo").unwrap_err();
        assert_eq!(
            status.message,
            "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Unsupported value: \"Foo\": supported values: \
             \"Foreground\", \"Background\", \"Orphan\", \"nil\""
        );
        let both = json!({"orphanDependents": true, "propagationPolicy": "Foreground"});
        let status = DeleteOptions::parse(Some(&both), "").unwrap_err();
        assert_eq!(
            status.message,
            "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Invalid value: \"Foreground\": \
             orphanDependents and deletionPropagation cannot be both set"
        );
    }
}
