//! A file of one document that is read into a type of another crate.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use crate::{
    document::{self, Node},
    fault::{ConfigError, Faults},
    read::{self, Rules},
};

/// The document of a file, parsed but not yet read into a type. JSON is YAML.
#[derive(Clone, Debug)]
pub struct File {
    path: PathBuf,
    node: Node,
}

impl File {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or is not one YAML document.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(&document::read(path)?, path)
    }

    /// Takes a text as the content of the file at `path`, which is not read.
    ///
    /// # Errors
    /// It is not one YAML document.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let node = document::one(text, "document").map_err(|fault| ConfigError::new(path, vec![fault]))?;
        Ok(Self { path: path.to_owned(), node })
    }

    /// The value of a key instead of the whole document, if it has the key.
    pub fn within(self, key: &str) -> Self {
        let node = self.node.get(key).cloned().unwrap_or(self.node);
        Self { path: self.path, node }
    }

    /// Reads it into a raw type, all of whose fields must have defaults, and checks that.
    ///
    /// # Errors
    /// Everything that does not fit the type, and what `check` adds.
    pub fn read<T, U>(&self, check: impl FnOnce(T, &mut Faults<'_>) -> U) -> Result<U, ConfigError>
    where
        T: DeserializeOwned + Default,
    {
        let rules = Rules { null_is_absent: false, open: &[], later: &[] };
        let mut found = Vec::new();
        let raw = read::read(&self.node, "", rules, &mut found);
        let mut faults = Faults::new(&self.node, found);
        let checked = check(raw, &mut faults);
        let list = faults.into_list();
        if list.is_empty() { Ok(checked) } else { Err(ConfigError::new(&self.path, list)) }
    }
}
