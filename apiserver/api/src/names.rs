//! Which names Kubernetes accepts, with its messages.
//!
//! Each check returns everything that is wrong, worded as upstream's `k8s.io/apimachinery` words it.

/// A name that can stand alone in a URL path: not `.` or `..`, no `/` and no `%`.
///
/// # Errors
/// The messages.
pub fn path_segment(name: &str) -> Result<(), Vec<String>> {
    if name == "." || name == ".." {
        return Err(vec![format!("may not be '{name}'")]);
    }
    none_or(["/", "%"].into_iter().filter(|s| name.contains(s)).map(|s| format!("may not contain '{s}'")).collect())
}

fn none_or(messages: Vec<String>) -> Result<(), Vec<String>> {
    if messages.is_empty() { Ok(()) } else { Err(messages) }
}
