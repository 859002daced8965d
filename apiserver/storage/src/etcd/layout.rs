//! Where the store's keys are in etcd.
//!
//! A key is the prefix followed by the store's key, which begins with a slash. Keys of our own stand below the same
//! prefix, so that the one watch sees them too, and hold a NUL, which no key of the store does.

/// An interval of etcd's keys: first, and first no more.
pub(super) type Interval = (Vec<u8>, Vec<u8>);

/// Where Kubernetes' API servers note which revision was compacted last, and so do we: whoever shares an etcd does it
/// together (kubernetes, `compact.go` of its etcd3 storage).
pub(super) const COMPACTED: &[u8] = b"compact_rev_key";

pub(super) struct Layout {
    prefix: String,
}

impl Layout {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.into() }
    }

    /// A key of the store.
    pub(super) fn key(&self, key: &str) -> Vec<u8> {
        [self.prefix.as_bytes(), key.as_bytes()].concat()
    }

    /// The key that is written to see how far the watch is.
    pub(super) fn mark(&self) -> Vec<u8> {
        self.key("/\0mark")
    }

    /// All keys below the prefix, ours too.
    pub(super) fn everything(&self) -> Interval {
        (self.key("/"), self.key("0"))
    }

    /// The store's keys that begin with `prefix` and are greater than `after`.
    pub(super) fn interval(&self, prefix: &str, after: Option<&str>) -> Interval {
        let first_key = self.key("/\u{1}");
        let mut start = self.key(prefix).max(first_key);
        if let Some(after) = after {
            let mut next = self.key(after);
            next.push(0);
            start = start.max(next);
        }
        let end = if prefix.is_empty() { self.key("0") } else { self.behind(prefix) };
        (start, end)
    }

    /// The first key that is greater than all that begin with `prefix`. Text never ends with the byte 0xff.
    fn behind(&self, prefix: &str) -> Vec<u8> {
        let mut end = self.key(prefix);
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        end
    }

    /// The store's key of one of etcd's; `None` for our own and for what is no text.
    pub(super) fn strip<'a>(&self, key: &'a [u8]) -> Option<&'a str> {
        let key = std::str::from_utf8(key.strip_prefix(self.prefix.as_bytes())?).ok()?;
        (key.starts_with('/') && !key.contains('\0')).then_some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals() {
        let layout = Layout::new("/f");
        let text = |(a, b): Interval| (String::from_utf8(a).unwrap(), String::from_utf8(b).unwrap());
        assert_eq!(text(layout.everything()), ("/f/".into(), "/f0".into()));
        assert_eq!(text(layout.interval("", None)), ("/f/\u{1}".into(), "/f0".into()));
        assert_eq!(text(layout.interval("/", None)), ("/f/\u{1}".into(), "/f0".into()));
        assert_eq!(text(layout.interval("/a/", None)), ("/f/a/".into(), "/f/a0".into()));
        assert_eq!(text(layout.interval("/a/", Some("/a/x"))), ("/f/a/x\0".into(), "/f/a0".into()));
        assert_eq!(text(layout.interval("/b/", Some("/a/x"))), ("/f/b/".into(), "/f/b0".into()));
        assert!(layout.mark() >= layout.everything().0 && layout.mark() < layout.interval("", None).0);
    }

    #[test]
    fn keys_are_read_back() {
        let layout = Layout::new("/f");
        assert_eq!(layout.strip(&layout.key("/a/x")), Some("/a/x"));
        for other in [&b"/f0"[..], b"/g/a", b"/f/\0mark", b"/f/\xff", b"compact_rev_key"] {
            assert_eq!(layout.strip(other), None, "{other:?}");
        }
    }
}
