//! `CreateOptions`, `UpdateOptions` and `PatchOptions`.

use apiserver_api::{
    Status,
    field::{Error, Path},
    query_pairs,
};
use serde_json::json;

use super::{check, parse_bool};
use crate::resource::ErrorList;

/// What becomes of unknown and duplicate fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    /// Dropped in silence.
    Ignore,
    /// Dropped with a warning; the default.
    #[default]
    Warn,
    /// The request is refused.
    Strict,
}

/// Which write it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteVerb {
    /// POST.
    Create,
    /// PUT.
    Update,
    /// PATCH.
    Patch,
    /// PATCH that applies a configuration.
    Apply,
}

/// Parsed and checked options of a write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// Do everything but write.
    pub dry_run: bool,
    /// See [`FieldValidation`].
    pub field_validation: FieldValidation,
    /// Who owns the fields; empty when not given.
    pub field_manager: String,
    /// Fields of other managers are taken over (apply only).
    pub force: bool,
}

/// Most bytes of a field manager's name.
const MANAGER_BYTES_MAX: usize = 128;

impl WriteOptions {
    /// Reads the raw query of a write.
    ///
    /// # Errors
    /// 422 naming `CreateOptions`, `UpdateOptions` or `PatchOptions` (api-server.md 2.8).
    pub fn parse(verb: WriteVerb, query: &str) -> Result<Self, Status> {
        let (mut options, mut errors, mut dry_runs) = (Self::default(), Vec::new(), Vec::new());
        for (key, value) in query_pairs(query) {
            match &*key {
                "dryRun" => dry_runs.push(value.into_owned()),
                "fieldManager" => {
                    options.field_manager = value.into_owned();
                    check_manager(&options.field_manager, &mut errors);
                }
                "fieldValidation" => options.set_validation(&value, &mut errors),
                "force" if verb == WriteVerb::Apply => options.force = parse_bool(&value),
                "force" if verb == WriteVerb::Patch && parse_bool(&value) => {
                    errors.push(Error::forbidden(&Path::new("force"), "may not be specified for non-apply patch"));
                }
                _ => {}
            }
        }
        options.dry_run = check_dry_run(&dry_runs, &mut errors);
        if verb == WriteVerb::Apply && options.field_manager.is_empty() {
            errors.push(Error::required(&Path::new("fieldManager"), "is required for apply patch"));
        }
        let kind = match verb {
            WriteVerb::Create => "CreateOptions",
            WriteVerb::Update => "UpdateOptions",
            WriteVerb::Patch | WriteVerb::Apply => "PatchOptions",
        };
        check(kind, errors).map(|()| options)
    }

    /// The same, with the beginning of the client's `User-Agent` as the field manager when there is none (upstream's
    /// rule: what stands before the first `/`, printable, cut to the longest name that is allowed).
    #[must_use]
    pub fn managed_by(mut self, user_agent: &str) -> Self {
        if self.field_manager.is_empty() {
            let name = user_agent.split('/').next().unwrap_or_default().chars().filter(|c| !c.is_control());
            for c in name {
                if self.field_manager.len() + c.len_utf8() > MANAGER_BYTES_MAX {
                    break;
                }
                self.field_manager.push(c);
            }
            if self.field_manager.is_empty() {
                self.field_manager.push_str("unknown");
            }
        }
        self
    }

    fn set_validation(&mut self, value: &str, errors: &mut ErrorList) {
        self.field_validation = match value {
            "" | "Warn" => FieldValidation::Warn,
            "Ignore" => FieldValidation::Ignore,
            "Strict" => FieldValidation::Strict,
            other => {
                let supported = &["", "Ignore", "Strict", "Warn"];
                errors.push(Error::not_supported(&Path::new("fieldValidation"), json!(other), supported));
                return;
            }
        };
    }
}

fn check_manager(manager: &str, errors: &mut ErrorList) {
    if manager.len() > MANAGER_BYTES_MAX {
        errors.push(Error::too_long(&Path::new("fieldManager"), MANAGER_BYTES_MAX));
    }
    if manager.chars().any(char::is_control) {
        errors.push(Error::invalid(
            &Path::new("fieldManager"),
            json!(manager),
            "should only contain printable characters",
        ));
    }
}

/// Whether it is a dry run: `All` is the only value there is.
pub(super) fn check_dry_run(values: &[String], errors: &mut ErrorList) -> bool {
    if values.iter().any(|v| v != "All") {
        errors.push(Error::not_supported(&Path::new("dryRun"), json!(values), &["All"]));
    }
    !values.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_options() {
        let options =
            WriteOptions::parse(WriteVerb::Create, "dryRun=All&fieldValidation=Strict&fieldManager=m").unwrap();
        assert!(options.dry_run);
        assert_eq!((options.field_validation, &*options.field_manager), (FieldValidation::Strict, "m"));
        assert_eq!(WriteOptions::parse(WriteVerb::Patch, "force=false").unwrap(), WriteOptions::default());
        assert!(WriteOptions::parse(WriteVerb::Apply, "force=true&fieldManager=m").unwrap().force);
    }

    #[test]
    fn managers_of_those_who_do_not_say() {
        let long = "a".repeat(200);
        for (given, agent, want) in [
            ("m", "kubectl/v1.35", "m"),
            ("", "kubectl/v1.35 (linux)", "kubectl"),
            ("", "a\tb", "ab"),
            ("", "", "unknown"),
            ("", &long, &long[..128]),
        ] {
            let options = WriteOptions { field_manager: given.into(), ..WriteOptions::default() };
            assert_eq!(options.managed_by(agent).field_manager, want);
        }
    }

    #[test]
    fn refusals_have_upstreams_text() {
        let long = format!("fieldManager={}", "a".repeat(129));
        for (verb, query, want) in [
            (
                WriteVerb::Create,
                "fieldValidation=Foo",
                "CreateOptions.meta.k8s.io \"\" is invalid: fieldValidation: Unsupported value: \"Foo\": supported values: \"\", \"Ignore\", \"Strict\", \"Warn\"",
            ),
            (
                WriteVerb::Update,
                "dryRun=Foo",
                "UpdateOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: [\"Foo\"]: supported values: \"All\"",
            ),
            (
                WriteVerb::Create,
                &long,
                "CreateOptions.meta.k8s.io \"\" is invalid: fieldManager: Too long: may not be more than 128 bytes",
            ),
            (
                WriteVerb::Apply,
                "force=true",
                "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
            ),
            (
                WriteVerb::Patch,
                "force=true",
                "PatchOptions.meta.k8s.io \"\" is invalid: force: Forbidden: may not be specified for non-apply patch",
            ),
        ] {
            let status = WriteOptions::parse(verb, query).unwrap_err();
            assert_eq!((status.code, &*status.message), (422, want));
        }
    }
}
