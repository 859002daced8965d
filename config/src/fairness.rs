//! `fairness.yaml`: FlowSchemas, priority levels and workspace classes.

use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
};

use apiserver_api::flowcontrol::{FlowSchema, GROUP, PriorityLevelConfiguration, Version, bootstrap};
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{
    advice,
    class::{self, RawClass, WorkspaceClass},
    document::{self, Content, Node},
    fault::{ConfigError, Fault, Faults, Position, clip, note},
    read::{self, Rules},
};

const CLASS_VERSION: &str = "fairgate.dev/v1alpha1";

/// The checked file. Objects are v1, defaulted, valid and in the order of the file.
///
/// An empty file is refused: it is more often what is left of one than meant. A file that has objects, or says that
/// it has none (`kind: List`, `items: []`), but no FlowSchema and no priority level gets
/// Kubernetes' bootstrap objects; to one that has some, only the mandatory ones (`exempt`, `catch-all`) are added when they are missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FairnessConfig {
    /// Names are unique.
    pub flow_schemas: Vec<FlowSchema>,
    /// Names are unique.
    pub priority_levels: Vec<PriorityLevelConfiguration>,
    /// Names are unique; the first that matches a workspace counts.
    pub classes: Vec<WorkspaceClass>,
    /// What it was read from; `None` for the defaults.
    pub source: Option<Source>,
    /// What is odd but no fault, one line each: FlowSchemas that name no known level (as upstream, these match nothing until
    /// the level is there), and classes of paths that no workspace has.
    pub warnings: Vec<String>,
}

/// The content of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The file.
    pub file: PathBuf,
    /// SHA-256 of its content in lower-case hexadecimal, as `sha256sum` prints it.
    pub sha256: String,
}

impl Source {
    /// Names a text as the content of a file.
    pub fn new(file: &Path, text: &str) -> Self {
        let digest = Sha256::digest(text.as_bytes());
        let sha256 = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        Self { file: file.to_owned(), sha256 }
    }
}

impl Default for FairnessConfig {
    fn default() -> Self {
        Self {
            flow_schemas: bootstrap::flow_schemas(),
            priority_levels: bootstrap::priority_levels(),
            classes: Vec::new(),
            source: None,
            warnings: Vec::new(),
        }
    }
}

impl FairnessConfig {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(&Self::read(path)?, path)
    }

    /// Reads a file as text, for [`FairnessConfig::parse`].
    ///
    /// # Errors
    /// It cannot be read, is too large or no UTF-8.
    pub fn read(path: &Path) -> Result<String, ConfigError> {
        document::read(path)
    }

    /// Checks a text as the content of the file at `path`, which is not read.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let (documents, faults) = document::parse_each(text);
        let mut reader = FileReader { faults, ..FileReader::default() };
        if documents.is_empty() && reader.faults.is_empty() {
            reader.faults.push(Fault::at(Position::START, format!("is empty; want {KINDS}; {DEFAULTS}")));
        }
        for document in documents {
            reader.document(document);
        }
        if reader.faults.is_empty() {
            Ok(reader.finish(Source::new(path, text)))
        } else {
            Err(ConfigError::new(path, reader.faults))
        }
    }
}

const KINDS: &str = "FlowSchema, PriorityLevelConfiguration, WorkspaceClass or List";
/// How to ask for what an empty file could have meant.
const DEFAULTS: &str = "Kubernetes' own levels are in force with `{ apiVersion: v1, kind: List, items: [] }`, or \
                        without fairness.file in gateway.yaml";

/// Objects of Kubernetes: what it fills in (metadata, status) is of no concern.
const OBJECT: Rules = Rules { null_is_absent: true, open: &["ObjectMeta"], later: &[] };
const CLASS: Rules = Rules { null_is_absent: false, open: &[], later: &[] };

#[derive(Default)]
struct FileReader {
    flow_schemas: Vec<(FlowSchema, Position)>,
    priority_levels: Vec<PriorityLevelConfiguration>,
    classes: Vec<WorkspaceClass>,
    /// Kind and name of what was read, and where its name stands.
    seen: HashMap<(&'static str, String), Position>,
    faults: Vec<Fault>,
    /// What is odd, and where.
    warnings: Vec<(Position, String)>,
}

impl FileReader {
    fn document(&mut self, node: Node) {
        let item = match node.text("kind") {
            Some("List") => None,
            // The API server leaves out what the kind of the list says already.
            Some("FlowSchemaList") => Some("FlowSchema"),
            Some("PriorityLevelConfigurationList") => Some("PriorityLevelConfiguration"),
            _ => return self.object(node),
        };
        let api_version = node.text("apiVersion").unwrap_or_default().to_owned();
        let given = item.map(|kind| [("kind", kind), ("apiVersion", &*api_version)]);
        let Content::Map(entries) = node.content else { return };
        let mut items = None;
        for (key, value) in entries {
            match &*key.name {
                "items" => items = Some(value),
                "apiVersion" | "kind" | "metadata" => {}
                _ => self.fault(key.position, &key.name, "is no known key; want apiVersion, kind, metadata, items"),
            }
        }
        match items.map(|node| (node.position, node.content)) {
            Some((_, Content::List(items))) => {
                for (i, mut item) in items.into_iter().enumerate() {
                    given.iter().flatten().for_each(|(key, text)| item.give(key, text));
                    let before = self.faults.len();
                    self.object(item);
                    for fault in self.faults.iter_mut().skip(before) {
                        fault.field = read::join(&format!("items[{i}]"), &fault.field);
                    }
                }
            }
            Some((position, content)) => {
                self.fault(position, "items", format!("is {}; want a list of objects", content.describe()));
            }
            None => self.fault(node.position, "items", "is missing; want a list of objects"),
        }
    }

    fn fault(&mut self, position: Position, field: &str, message: impl Into<String>) {
        let field = clip(field).into_owned();
        note(&mut self.faults, Fault { position: Some(position), field, message: message.into(), meant: None });
    }

    fn all(&mut self, found: Vec<Fault>) {
        found.into_iter().for_each(|fault| note(&mut self.faults, fault));
    }

    fn object(&mut self, mut node: Node) {
        let kind = node.text("kind").unwrap_or_default().to_owned();
        let api_version = node.text("apiVersion").unwrap_or_default().to_owned();
        match &*kind {
            "FlowSchema" | "PriorityLevelConfiguration" => {
                let Some(version) = Version::parse(&api_version) else {
                    let want = format!("want {GROUP}/v1 (or v1beta1 to v1beta3)");
                    self.fault(node.locate("apiVersion"), "apiVersion", format!("is {:?}; {want}", clip(&api_version)));
                    return;
                };
                without(&mut node, &["kind", "apiVersion", "status"]);
                if kind == "FlowSchema" { self.flow_schema(&node) } else { self.priority_level(&node, version) }
            }
            "WorkspaceClass" => {
                if api_version != CLASS_VERSION {
                    let message = format!("is {:?}; want {CLASS_VERSION}", clip(&api_version));
                    self.fault(node.locate("apiVersion"), "apiVersion", message);
                }
                without(&mut node, &["kind", "apiVersion"]);
                self.class(&node);
            }
            _ => {
                let found = match node.get("kind") {
                    None if !matches!(node.content, Content::Map(_)) => {
                        format!("the document is {}", node.content.describe())
                    }
                    found => format!("is {}", found.map_or("missing".to_owned(), |n| n.content.describe())),
                };
                let message = format!("{found}; want {KINDS}");
                self.fault(node.locate("kind"), "kind", message);
            }
        }
    }

    fn flow_schema(&mut self, node: &Node) {
        let mut found = Vec::new();
        let mut schema: FlowSchema = read::read(node, "", OBJECT, &mut found);
        schema.set_defaults();
        self.unique(node, "FlowSchema", &schema.metadata.name, &mut found);
        let fixed =
            bootstrap::mandatory_flow_schema(&schema.metadata.name).map(|spec| (json(&schema.spec), json(&spec)));
        self.validated(node, found, &schema.validate(), fixed);
        self.flow_schemas.push((schema, node.locate("spec.priorityLevelConfiguration.name")));
    }

    fn priority_level(&mut self, node: &Node, version: Version) {
        let mut found = Vec::new();
        let mut level: PriorityLevelConfiguration = read::read(node, "", OBJECT, &mut found);
        level.set_defaults(version);
        self.unique(node, "PriorityLevelConfiguration", &level.metadata.name, &mut found);
        let old = version == Version::Older;
        let (wrong, right) = match old {
            true => ("nominalConcurrencyShares", "assuredConcurrencyShares"),
            false => ("assuredConcurrencyShares", "nominalConcurrencyShares"),
        };
        let limited = node.get("spec").and_then(|spec| spec.get("limited"));
        if let Some(wrong_node) = limited.and_then(|limited| limited.get(wrong)) {
            let message = format!("is of another apiVersion; want {right}");
            found.push(Fault {
                position: Some(wrong_node.position),
                field: format!("spec.limited.{wrong}"),
                message,
                meant: None,
            });
        }
        let fixed = bootstrap::mandatory_level(&level.metadata.name).map(|spec| (json(&level.spec), json(&spec)));
        self.validated(node, found, &level.validate(), fixed);
        self.priority_levels.push(level);
    }

    fn class(&mut self, node: &Node) {
        let mut found = Vec::new();
        let raw: RawClass = read::read(node, "", CLASS, &mut found);
        self.unique(node, "WorkspaceClass", &raw.metadata.name, &mut found);
        let mut faults = Faults::new(node, found);
        let class = class::check(raw, &mut faults);
        let is_right = faults.is_empty();
        self.all(faults.into_list());
        let Some(class) = class.filter(|_| is_right) else { return };
        for (i, pattern) in class.paths.iter().enumerate().filter(|(_, pattern)| !pattern.is_rooted()) {
            let field = format!("spec.match.paths[{i}]");
            let position = node.locate(&field);
            let message = format!(
                "{field}: WorkspaceClass {:?} names the path {pattern}, which does not begin with root: as those of \
                 workspaces do; it matches nothing; want root:{pattern}, perhaps",
                class.name
            );
            self.warnings.push((position, message));
        }
        self.classes.push(class);
    }

    /// Adds what the reader and the validation of an object found. Where something could not be read, it
    /// is not said to be missing as well. `fixed` is the spec of a mandatory object, behind what the file has.
    fn validated(
        &mut self,
        node: &Node,
        found: Vec<Fault>,
        errors: &[apiserver_api::field::Error],
        fixed: Option<(Value, Value)>,
    ) {
        let mut faults = Faults::new(node, found);
        for error in errors {
            match &fixed {
                Some((found, fixed)) if error.field == "spec" => advice::differences(found, fixed, &mut faults),
                _ => faults.add(&*error.field, advice::told(error)),
            }
        }
        self.all(faults.into_list());
    }

    fn unique(&mut self, node: &Node, kind: &'static str, name: &str, found: &mut Vec<Fault>) {
        if name.is_empty() {
            return;
        }
        let position = node.locate("metadata.name");
        if let Some(first) = self.seen.get(&(kind, name.to_owned())) {
            let message = format!("is {:?}, as of the {kind} at {first}; want a name of its own", clip(name));
            found.push(Fault { position: Some(position), field: "metadata.name".to_owned(), message, meant: None });
        } else {
            self.seen.insert((kind, name.to_owned()), position);
        }
    }

    fn finish(self, source: Source) -> FairnessConfig {
        let default = FairnessConfig::default();
        if self.flow_schemas.is_empty() && self.priority_levels.is_empty() {
            let warnings = told(self.warnings, &source);
            return FairnessConfig { classes: self.classes, source: Some(source), warnings, ..default };
        }
        let mandatory = |name: &str| matches!(name, "exempt" | "catch-all");
        let mut priority_levels = self.priority_levels;
        let mut levels: HashSet<String> = priority_levels.iter().map(|l| l.metadata.name.clone()).collect();
        for level in default.priority_levels.into_iter().filter(|l| mandatory(&l.metadata.name)) {
            if levels.insert(level.metadata.name.clone()) {
                priority_levels.push(level);
            }
        }
        let dangling = |(schema, position): &(FlowSchema, Position)| {
            let (name, level) = (&schema.metadata.name, &schema.spec.priority_level_configuration.name);
            let message = || {
                format!(
                    "spec.priorityLevelConfiguration.name: FlowSchema {name:?} names the level {level:?}, which is not in \
                     the file; it matches nothing"
                )
            };
            (!levels.contains(level)).then(|| (*position, message()))
        };
        let mut warnings = self.warnings;
        warnings.extend(self.flow_schemas.iter().filter_map(dangling));
        let warnings = told(warnings, &source);
        let mut flow_schemas: Vec<_> = self.flow_schemas.into_iter().map(|(schema, _)| schema).collect();
        for schema in default.flow_schemas.into_iter().filter(|s| mandatory(&s.metadata.name)) {
            if !flow_schemas.iter().any(|s| s.metadata.name == schema.metadata.name) {
                flow_schemas.push(schema);
            }
        }
        FairnessConfig { flow_schemas, priority_levels, classes: self.classes, source: Some(source), warnings }
    }
}

/// The lines, in the order of the file.
fn told(mut warnings: Vec<(Position, String)>, source: &Source) -> Vec<String> {
    warnings.sort_by_key(|(position, _)| *position);
    let file = source.file.display();
    warnings.into_iter().map(|(position, message)| format!("{file}:{position}: {message}")).collect()
}

fn json(spec: &impl Serialize) -> Value {
    serde_json::to_value(spec).expect("strings, numbers and lists can always be written")
}

/// Takes away what is known by now, or of no concern.
fn without(node: &mut Node, keys: &[&str]) {
    if let Content::Map(entries) = &mut node.content {
        entries.retain(|(key, _)| !keys.contains(&&*key.name));
    }
}

#[cfg(test)]
mod tests;
