//! The token that continues a chunked list (api-server.md 3.3).
//!
//! Upstream's form, base64url of `{"v","rv","start"}`, plus a tag that binds it to the resource and the
//! logical cluster. Self-contained: it survives a restart and works at another replica. The tag is a
//! checksum, not a signature: whoever forges one still reads only the collection that he may list.

use apiserver_api::{Reason, Status};
use base64::{DecodeError, Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::resource::Resource;

/// Where a list goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContinueToken {
    /// The revision of the first page; `None` when the rest is taken from whatever is newest.
    pub revision: Option<u64>,
    /// The last key of the page before, relative to the collection's prefix.
    pub after: String,
}

#[derive(Serialize, Deserialize)]
struct Wire {
    v: String,
    rv: i64,
    start: String,
    #[serde(default)]
    tag: String,
}

const VERSION: &str = "meta.k8s.io/v1";

impl ContinueToken {
    /// The token's text. `cluster` is the logical cluster's name (or `*`), `namespace` the one that is listed,
    /// empty for all.
    ///
    /// # Panics
    /// Never: the fields can always be written as JSON.
    pub fn encode(&self, resource: &Resource, cluster: &str, namespace: &str) -> String {
        let rv = self.revision.and_then(|r| i64::try_from(r).ok()).unwrap_or(-1);
        let wire =
            Wire { v: VERSION.into(), rv, start: format!("{}\0", self.after), tag: tag(resource, cluster, namespace) };
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(&wire).expect("text and a number"))
    }

    /// Reads a token made for the same collection.
    ///
    /// # Errors
    /// 400 when it is none, was made for another collection, or its key could leave the collection.
    pub fn decode(text: &str, resource: &Resource, cluster: &str, namespace: &str) -> Result<Self, Status> {
        let changed = || refused("it is not as a list answers it; want its metadata.continue unchanged");
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|error| {
            let at = match error {
                DecodeError::InvalidByte(at, _) => Some(at),
                DecodeError::InvalidPadding => text.find('='),
                _ => None,
            };
            at.map_or_else(changed, |at| refused(&format!("illegal base64 data at input byte {at}")))
        })?;
        let wire: Wire = serde_json::from_slice(&bytes).map_err(|_| changed())?;
        if wire.v != VERSION {
            return Err(refused(&format!("server does not recognize this encoded version \"{}\"", wire.v)));
        }
        if wire.tag != tag(resource, cluster, namespace) {
            return Err(refused("it was made for another collection"));
        }
        let after = wire.start.strip_suffix('\0').unwrap_or(&wire.start);
        // What no part of a storage key is; everything else a name may contain.
        let tricky = |part: &str| matches!(part, "" | "." | "..") || part.bytes().any(|b| b.is_ascii_control());
        if after.split('/').any(tricky) {
            return Err(refused("the key is not one of this collection"));
        }
        let revision = match wire.rv {
            -1 => None,
            rv => match u64::try_from(rv) {
                Ok(rv) if rv > 0 => Some(rv),
                _ => return Err(refused("incorrect encoded start resourceVersion")),
            },
        };
        Ok(Self { revision, after: after.to_owned() })
    }
}

fn refused(why: &str) -> Status {
    Status::new(Reason::BadRequest, format!("invalid continue token: continue key is not valid: {why}"))
}

fn tag(resource: &Resource, cluster: &str, namespace: &str) -> String {
    let mut hash = Sha256::new();
    for part in [resource.group, resource.plural, cluster, namespace] {
        hash.update(part);
        hash.update([0]);
    }
    URL_SAFE_NO_PAD.encode(hash.finalize().get(..9).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::builtin;

    fn maps() -> &'static Resource {
        builtin::find("", "v1", "configmaps").unwrap()
    }

    #[test]
    fn bound_to_its_collection() {
        let token = ContinueToken { revision: Some(315), after: "ns/b".into() };
        let text = token.encode(maps(), "root", "");
        assert_eq!(ContinueToken::decode(&text, maps(), "root", "").unwrap(), token);
        let secrets = builtin::find("", "v1", "secrets").unwrap();
        for other in [
            ContinueToken::decode(&text, secrets, "root", ""),
            ContinueToken::decode(&text, maps(), "other", ""),
            ContinueToken::decode(&text, maps(), "root", "ns"),
            ContinueToken::decode(&text, maps(), "*", ""),
        ] {
            assert_eq!(other.unwrap_err().code, 400);
        }
    }

    #[test]
    fn the_newest_revision_is_minus_one() {
        let token = ContinueToken { revision: None, after: "b".into() };
        let text = token.encode(maps(), "root", "ns");
        assert!(String::from_utf8(URL_SAFE_NO_PAD.decode(&text).unwrap()).unwrap().contains("\"rv\":-1"));
        assert_eq!(ContinueToken::decode(&text, maps(), "root", "ns").unwrap(), token);
    }

    #[test]
    fn tricks_are_refused() {
        for after in ["../x", "a/../b", "", "/a", "a/", "a//b", ".", "a\0b", "a\nb"] {
            let text = ContinueToken { revision: Some(1), after: after.into() }.encode(maps(), "root", "");
            assert_eq!(ContinueToken::decode(&text, maps(), "root", "").unwrap_err().code, 400, "{after:?}");
        }
        for text in ["abc", "", "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MCwic3RhcnQiOiJ4In0="] {
            let message = ContinueToken::decode(text, maps(), "root", "").unwrap_err().message;
            assert!(message.starts_with("invalid continue token: continue key is not valid: "), "{message}");
        }
        let message = |text: &str| ContinueToken::decode(text, maps(), "root", "").unwrap_err().message;
        for json in ["{", "[]", "3", "{}", r#"{"v": "meta.k8s.io/v1", "rv": "x", "start": "a"}"#] {
            let message = message(&URL_SAFE_NO_PAD.encode(json));
            assert!(
                message.ends_with(": it is not as a list answers it; want its metadata.continue unchanged"),
                "{message}"
            );
        }
        assert!(message("eyJ2Ijo=").ends_with(": illegal base64 data at input byte 7"), "{}", message("eyJ2Ijo="));
    }

    proptest! {
        #[test]
        fn there_and_back(revision in prop::option::of(1..=i64::MAX as u64), after in "([a-z0-9]+/)?([^/%\\p{Cc}]|\\\\)*[a-z\\\\]") {
            let token = ContinueToken { revision, after };
            let text = token.encode(maps(), "c", "n");
            prop_assert_eq!(ContinueToken::decode(&text, maps(), "c", "n").unwrap(), token);
        }

        #[test]
        fn nothing_panics(text in ".*", bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = ContinueToken::decode(&text, maps(), "c", "n");
            let _ = ContinueToken::decode(&URL_SAFE_NO_PAD.encode(bytes), maps(), "c", "n");
        }
    }
}
