//! What is wrong with a configuration file.

use std::{
    borrow::Cow,
    collections::HashSet,
    fmt,
    path::{Path, PathBuf},
};

use crate::document::Node;

/// Faults of one file that are told; who has more of them mends these first.
const FAULTS_MAX: usize = 100;
/// Longest text of the file that is shown in a fault, in characters.
const SHOWN_MAX: usize = 80;

/// Longest message, in characters.
const MESSAGE_MAX: usize = 600;

/// The text, or its beginning when it is too long to be shown.
pub(crate) fn clip(text: &str) -> Cow<'_, str> {
    clip_to(text, SHOWN_MAX)
}

/// The same for another length, in characters.
pub(crate) fn clip_to(text: &str, max: usize) -> Cow<'_, str> {
    match text.char_indices().nth(max) {
        None => Cow::Borrowed(text),
        Some((end, _)) => Cow::Owned(format!("{}...", text.get(..end).unwrap_or_default())),
    }
}

/// Whether there are more faults than are told: then none need be made any more.
pub(crate) fn is_full(faults: &[Fault]) -> bool {
    faults.len() > FAULTS_MAX
}

/// Adds a fault, unless there are more than are told already.
pub(crate) fn note(faults: &mut Vec<Fault>, mut fault: Fault) {
    if !is_full(faults) {
        if let Cow::Owned(short) = clip_to(&fault.message, MESSAGE_MAX) {
            fault.message = short;
        }
        faults.push(fault);
    }
}

/// A place in a file; both count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Line.
    pub line: u64,
    /// Column, in characters.
    pub column: u64,
}

impl Position {
    /// The beginning of a file.
    pub(crate) const START: Self = Self { line: 1, column: 1 };
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where, unless it is about the file as a whole.
    pub position: Option<Position>,
    /// The field, for example `shards[0].seats`; empty when it is about a whole document.
    pub field: String,
    /// What is wrong, and what would be right.
    pub message: String,
    /// The field that a misspelt key was meant to be, if that is not there.
    pub(crate) meant: Option<String>,
}

impl Fault {
    /// A fault of a whole document.
    pub(crate) fn at(position: Position, message: impl Into<String>) -> Self {
        Self { position: Some(position), field: String::new(), message: message.into(), meant: None }
    }
}

/// The faults of one document, while it is checked.
pub struct Faults<'n> {
    node: &'n Node,
    list: Vec<Fault>,
    /// The fields of the list.
    fields: HashSet<String>,
}

impl<'n> Faults<'n> {
    /// Begins with what the reader of the document found.
    pub(crate) fn new(node: &'n Node, list: Vec<Fault>) -> Self {
        let fields = list.iter().flat_map(|fault| [Some(&fault.field), fault.meant.as_ref()]);
        let fields = fields.flatten().cloned().collect();
        Self { node, list, fields }
    }

    /// Adds that a field, if it is there, is `found`, and otherwise that it is missing. See [`Faults::add`].
    pub fn unfit(&mut self, field: &str, found: impl fmt::Display, want: impl fmt::Display) {
        match self.node.find(field) {
            Some(_) => self.add(field, format!("is {found}; want {want}")),
            None => self.add(field, format!("is missing; want {want}")),
        }
    }

    /// Adds a fault, unless the field or one around it has one already: that is then the cause. A misspelt key is one of the
    /// field that was meant.
    pub fn add(&mut self, field: impl Into<String>, message: impl Into<String>) {
        if is_full(&self.list) {
            return;
        }
        let (field, message) = (field.into(), message.into());
        let ends = field.match_indices(['.', '[']).map(|(end, _)| end).chain([field.len()]);
        let is_known = |end| field.get(..end).is_some_and(|around| self.fields.contains(around));
        if !ends.into_iter().any(is_known) {
            let position = self.node.locate(&field);
            self.fields.insert(field.clone());
            note(&mut self.list, Fault { position: Some(position), field, message, meant: None });
        }
    }

    /// The value, or a fault for the field.
    pub fn check<T, E: fmt::Display>(&mut self, field: &str, value: Result<T, E>) -> Option<T> {
        value.map_err(|why| self.add(field, why.to_string())).ok()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn into_list(self) -> Vec<Fault> {
        self.list
    }
}

/// Everything that is wrong with one file. Displays as one line per fault:
/// `path:line:column: field: what is wrong; want ...`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    path: PathBuf,
    faults: Vec<Fault>,
}

impl ConfigError {
    pub(crate) fn new(path: &Path, mut faults: Vec<Fault>) -> Self {
        faults.sort_by_key(|fault| fault.position);
        if faults.len() > FAULTS_MAX {
            faults.truncate(FAULTS_MAX);
            let position = faults.last().and_then(|fault| fault.position);
            let message = format!("and more: these are {FAULTS_MAX} of the faults");
            faults.push(Fault { position, field: String::new(), message, meant: None });
        }
        Self { path: path.to_owned(), faults }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The faults in the order of the file; never empty.
    pub fn faults(&self) -> &[Fault] {
        &self.faults
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, fault) in self.faults.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{}:", self.path.display())?;
            if let Some(position) = fault.position {
                write!(f, "{position}:")?;
            }
            if !fault.field.is_empty() {
                write!(f, " {}:", fault.field)?;
            }
            write!(f, " {}", fault.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}
