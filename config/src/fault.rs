//! What is wrong with a configuration file.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use crate::document::Node;

/// A place in a file; both count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Line.
    pub line: u64,
    /// Column, in characters.
    pub column: u64,
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
}

/// The faults of one document, while it is checked.
pub struct Faults<'n> {
    node: &'n Node,
    list: Vec<Fault>,
}

impl<'n> Faults<'n> {
    /// Begins with what the reader of the document found.
    pub(crate) fn new(node: &'n Node, list: Vec<Fault>) -> Self {
        Self { node, list }
    }

    /// Adds a fault, unless the field or one around it has one already: that is then the cause.
    pub fn add(&mut self, field: impl Into<String>, message: impl Into<String>) {
        let (field, message) = (field.into(), message.into());
        let is_around = |around: &str| {
            field.strip_prefix(around).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        if !self.list.iter().any(|fault| is_around(&fault.field)) {
            self.list.push(Fault { position: Some(self.node.locate(&field)), field, message });
        }
    }

    /// The value, or a fault for the field.
    pub fn check<T, E: fmt::Display>(&mut self, field: &str, value: Result<T, E>) -> Option<T> {
        value.map_err(|why| self.add(field, why.to_string())).ok()
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
