//! JSON patch within limits: operations, copied bytes and depth are what a small body could make huge.

use apiserver_api::{Reason, Status};
use json_patch::{Patch, PatchErrorKind, PatchOperation};
use serde_json::Value;

use super::{inapplicable, undecodable};

/// Most operations of one patch.
const OPERATIONS_MAX: usize = 10_000;
/// Most bytes that all `copy` operations of one patch may add.
const COPIED_MAX: usize = 3 << 20;
/// Most bytes and list items that `move`, insertion and removal may shift in sum.
const WORK_MAX: usize = 20_000_000;
/// Deepest nesting, as for parsed bodies: what is nested deeper could not be read, or even dropped, again.
const DEPTH_MAX: usize = 128;

pub(super) fn parse(value: Value) -> Result<Patch, Status> {
    let Value::Array(operations) = &value else { return Err(undecodable("want an array of operations")) };
    if operations.len() > OPERATIONS_MAX {
        let found = operations.len();
        return Err(Status::new(
            Reason::RequestEntityTooLarge,
            format!(
                "Request entity too large: The allowed maximum operations in a JSON patch is {OPERATIONS_MAX}, got {found}"
            ),
        ));
    }
    for (i, operation) in operations.iter().enumerate() {
        check(operation).map_err(|why| undecodable(&format!("operations[{i}]{why}")))?;
    }
    serde_json::from_value(value).map_err(|e| undecodable(&e.to_string()))
}

/// Operations, and whether each has a `from` or a `value`.
const OPERATIONS: [(&str, Option<&str>); 6] = [
    ("add", Some("value")),
    ("remove", None),
    ("replace", Some("value")),
    ("move", Some("from")),
    ("copy", Some("from")),
    ("test", Some("value")),
];

/// What is wrong with an operation, behind its place.
fn check(operation: &Value) -> Result<(), String> {
    let Value::Object(members) = operation else { return Err(": want an object with op and path".into()) };
    let text = |field: &str| match members.get(field) {
        Some(Value::String(text)) => Ok(text.as_str()),
        Some(_) => Err(format!(".{field}: want a text")),
        None => Err(format!(".{field}: is missing")),
    };
    let pointer = |field: &str| {
        let text = text(field)?;
        let read = json_patch::jsonptr::Pointer::parse(text);
        read.map(drop).map_err(|_| format!(".{field}: {text:?} is no JSON pointer; want one such as \"/data/key\""))
    };
    let op = text("op")?;
    let Some((_, needs)) = OPERATIONS.iter().find(|(name, _)| *name == op) else {
        let known = OPERATIONS.map(|(name, _)| name).join(", ");
        return Err(format!(".op: {op:?} is none of {known}"));
    };
    pointer("path")?;
    match needs {
        Some("from") => pointer("from"),
        Some(field) if !members.contains_key(*field) => Err(format!(".{field}: is missing; {op} needs it")),
        _ => Ok(()),
    }
}

pub(super) fn apply(patch: &Patch, document: &mut Value) -> Result<(), Status> {
    let mut budget = Budget::default();
    for (i, operation) in patch.iter().enumerate() {
        let fails = |why: String| inapplicable(format!("operations[{i}]"), why);
        budget.spend(operation, document).map_err(fails)?;
        if is_absent(operation, document) {
            continue;
        }
        let applied = json_patch::patch(document, std::slice::from_ref(operation));
        applied.map_err(|e| fails(explain(operation, document, &e.kind)))?;
    }
    Ok(())
}

/// Why an operation failed, and which part of its path is not there.
fn explain(operation: &PatchOperation, document: &Value, why: &PatchErrorKind) -> String {
    let (name, from) = match operation {
        PatchOperation::Add(_) => ("add", None),
        PatchOperation::Remove(_) => ("remove", None),
        PatchOperation::Replace(_) => ("replace", None),
        PatchOperation::Move(moved) => ("move", Some(&moved.from)),
        PatchOperation::Copy(copy) => ("copy", Some(&copy.from)),
        PatchOperation::Test(_) => ("test", None),
    };
    let path = match (why, from) {
        (PatchErrorKind::InvalidFromPointer, Some(from)) => from.as_str(),
        _ => operation.path().as_str(),
    };
    let why = match why {
        PatchErrorKind::InvalidFromPointer | PatchErrorKind::InvalidPointer => match missing(path, document) {
            Some(missing) if missing == path => "it is not there".into(),
            Some(missing) => format!("{missing:?} is not there"),
            None => "nothing can be put there".into(),
        },
        other => other.to_string(),
    };
    format!("{name} {path:?}: {why}")
}

/// The shortest part of a pointer that leads nowhere.
fn missing<'a>(path: &'a str, document: &Value) -> Option<&'a str> {
    let ends = path.match_indices('/').skip(1).map(|(at, _)| at).chain([path.len()]);
    ends.filter_map(|end| path.get(..end)).find(|part| document.pointer(part).is_none())
}

/// Whether it tests a member of an object for null, and there is none. RFC 6902 has that fail; upstream's library lets it
/// pass, and kube-rs adds its first finalizer that way.
fn is_absent(operation: &PatchOperation, document: &Value) -> bool {
    let PatchOperation::Test(test) = operation else { return false };
    let parent = test.path.parent().and_then(|parent| parent.resolve(document).ok());
    test.value.is_null() && parent.is_some_and(Value::is_object) && test.path.resolve(document).is_err()
}

/// What one patch may cost. Every look at the document is paid for, so that the check itself stays cheap.
#[derive(Default)]
struct Budget {
    copied: usize,
    work: usize,
}

impl Budget {
    /// Accounts for an operation before it is carried out.
    fn spend(&mut self, operation: &PatchOperation, document: &Value) -> Result<(), String> {
        let path = operation.path();
        let at = |pointer: &json_patch::jsonptr::Pointer| pointer.resolve(document).ok();
        let nested = match operation {
            PatchOperation::Add(add) => depth(&add.value),
            PatchOperation::Replace(replace) => depth(&replace.value),
            PatchOperation::Copy(copy) => at(&copy.from).map_or(0, |source| {
                self.copied += size(source);
                depth(source)
            }),
            PatchOperation::Move(moved) => at(&moved.from).map_or(0, |source| {
                self.work += size(source);
                depth(source)
            }),
            PatchOperation::Remove(_) | PatchOperation::Test(_) => 0,
        };
        // An item put into or taken from a list shifts all behind it.
        let from = if let PatchOperation::Move(moved) = operation { moved.from.parent() } else { None };
        for parent in [path.parent(), from].into_iter().flatten() {
            if let Some(Value::Array(list)) = at(parent) {
                self.work += list.len();
            }
        }
        if self.copied > COPIED_MAX {
            return Err(format!("copies add more than {COPIED_MAX} bytes"));
        }
        if self.work > WORK_MAX {
            return Err("the patch moves too much".into());
        }
        if nested + path.tokens().count() > DEPTH_MAX {
            return Err(format!("the result is nested more than {DEPTH_MAX} deep"));
        }
        Ok(())
    }
}

/// About the length of its JSON.
fn size(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(|v| size(v) + 1).sum::<usize>() + 2,
        Value::Object(members) => members.iter().map(|(k, v)| k.len() + size(v) + 4).sum::<usize>() + 2,
    }
}

/// Levels of nesting; bounded, since every step before was within the limit.
fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or_default(),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or_default(),
        _ => 0,
    }
}
