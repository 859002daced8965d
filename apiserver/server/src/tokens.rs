//! Tokens of service accounts: JWTs (RFC 7519) that this server signs with its own key (ES256) and that it, and whoever
//! reads its public key at `/openid/v1/jwks`, can check (api-server.md 5.4, 6).
//!
//! Claims are upstream's; `kubernetes.io.clusterName` says which logical cluster the account lies in, as kcp has it. A
//! token is as good as its account: it is worth nothing once that is gone, or another of the same name is there.

use apiserver_api::ClusterName;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Longest token that is looked at, in bytes. Ours are about 1 KiB.
const TOKEN_BYTES_MAX: usize = 16 * 1024;

/// Most keys that tokens are checked with.
const KEYS_MAX: usize = 16;

/// The key that tokens are signed with, on the curve P-256, and those that have signed before it: what they signed stays
/// good until it ends. All of them are published.
pub struct TokenKey {
    signing: EncodingKey,
    /// That of `signing` first.
    public: Vec<PublicKey>,
}

/// What tokens are checked with.
struct PublicKey {
    /// RFC 7638 thumbprint.
    id: String,
    x: String,
    y: String,
    verifying: DecodingKey,
}

impl std::fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ids: Vec<&str> = self.public.iter().map(|key| &*key.id).collect();
        write!(f, "TokenKey({})", ids.join(", "))
    }
}

/// What is wrong with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenKeyError {
    /// It is another one, or none at all.
    #[error("not a key on the curve P-256: want its PKCS#8 form and the 65 bytes of its public point")]
    Form,
    /// There are too many older ones.
    #[error("more than {KEYS_MAX} keys")]
    Many,
}

/// What a token says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claims {
    pub(crate) aud: Vec<String>,
    /// Unix seconds, as all times here.
    pub(crate) exp: i64,
    pub(crate) iat: i64,
    pub(crate) iss: String,
    /// Unique.
    pub(crate) jti: String,
    #[serde(rename = "kubernetes.io")]
    pub(crate) account: Account,
    pub(crate) nbf: i64,
    /// `system:serviceaccount:<namespace>:<name>`.
    pub(crate) sub: String,
}

/// Whose token it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Account {
    #[serde(rename = "clusterName")]
    pub(crate) cluster: String,
    pub(crate) namespace: String,
    #[serde(rename = "serviceaccount")]
    pub(crate) account: Reference,
    /// The token dies with it too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) secret: Option<Reference>,
}

/// One object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reference {
    pub(crate) name: String,
    pub(crate) uid: String,
}

impl Account {
    /// The logical cluster, if that is the name of one.
    pub(crate) fn cluster(&self) -> Option<ClusterName> {
        self.cluster.parse().ok()
    }
}

impl TokenKey {
    /// A key from its private part (PKCS#8, DER) and its public point (65 bytes, uncompressed).
    ///
    /// # Errors
    /// The two are not such a key, or do not belong together.
    pub fn new(private: &[u8], public: &[u8]) -> Result<Self, TokenKeyError> {
        let key = Self { signing: EncodingKey::from_ec_der(private), public: vec![PublicKey::new(public)?] };
        let tried = key.seal(&json!({"exp": u32::MAX})).ok_or(TokenKeyError::Form)?;
        let mut any = Validation::new(Algorithm::ES256);
        any.validate_aud = false;
        let own = key.public.first().ok_or(TokenKeyError::Form)?;
        jsonwebtoken::decode::<Value>(&tried, &own.verifying, &any).map_err(|_| TokenKeyError::Form)?;
        Ok(key)
    }

    /// The same key, that also takes what was signed with the key of this public point (65 bytes, uncompressed).
    ///
    /// # Errors
    /// It is no such point, or there are too many.
    pub fn accepting(mut self, public: &[u8]) -> Result<Self, TokenKeyError> {
        let other = PublicKey::new(public)?;
        if self.public.len() >= KEYS_MAX {
            return Err(TokenKeyError::Many);
        }
        if self.public.iter().all(|key| key.id != other.id) {
            self.public.push(other);
        }
        Ok(self)
    }

    /// A signed token; `None` when the key cannot sign.
    fn seal<T: Serialize>(&self, claims: &T) -> Option<String> {
        let mut header = Header::new(Algorithm::ES256);
        header.typ = None;
        header.kid = Some(self.public.first()?.id.clone());
        jsonwebtoken::encode(&header, claims, &self.signing).ok()
    }

    /// A token that says this; `None` when the key cannot sign, which [`TokenKey::new`] has ruled out.
    pub(crate) fn sign(&self, claims: &Claims) -> Option<String> {
        self.seal(claims)
    }

    /// What a token of ours says that is valid now and meant for one of these audiences. `None` for all others, without
    /// a reason: who makes tokens up learns nothing.
    ///
    /// Our address is the issuer, and may have been another when the token was signed, or be that of another server on the
    /// same store: then a token for that server is one for this too. The key says that it is ours.
    pub(crate) fn verify(&self, token: &str, issuer: &str, audiences: &[String]) -> Option<Claims> {
        if token.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let mut wanted = Validation::new(Algorithm::ES256);
        wanted.validate_aud = false;
        wanted.set_required_spec_claims(&["exp", "nbf", "aud", "iss", "sub"]);
        wanted.validate_nbf = true;
        // The clock is the same that signed.
        wanted.leeway = 0;
        let signed_by = jsonwebtoken::decode_header(token).ok()?.kid?;
        let key = self.public.iter().find(|key| key.id == signed_by)?;
        let mut claims = jsonwebtoken::decode::<Claims>(token, &key.verifying, &wanted).ok()?.claims;
        let signed_as = std::mem::replace(&mut claims.iss, issuer.to_owned());
        if signed_as != issuer && claims.aud.contains(&signed_as) {
            claims.aud.push(issuer.to_owned());
        }
        claims.aud.iter().any(|audience| audiences.contains(audience)).then_some(claims)
    }

    /// The public keys as a JSON Web Key Set (RFC 7517).
    pub(crate) fn key_set(&self) -> Value {
        let shown = |PublicKey { id, x, y, .. }: &PublicKey| json!({"use": "sig", "kty": "EC", "kid": id, "crv": "P-256", "alg": "ES256", "x": x, "y": y});
        json!({"keys": self.public.iter().map(shown).collect::<Vec<_>>()})
    }
}

impl PublicKey {
    fn new(point: &[u8]) -> Result<Self, TokenKeyError> {
        let (4, point) = point.split_first().map(|(form, point)| (*form, point)).ok_or(TokenKeyError::Form)? else {
            return Err(TokenKeyError::Form);
        };
        let (x, y) = point.split_at_checked(32).filter(|(_, y)| y.len() == 32).ok_or(TokenKeyError::Form)?;
        let (x, y) = (URL_SAFE_NO_PAD.encode(x), URL_SAFE_NO_PAD.encode(y));
        // Members in the order of their names, without blanks: RFC 7638 section 3.
        let id = URL_SAFE_NO_PAD.encode(Sha256::digest(format!(r#"{{"crv":"P-256","kty":"EC","x":"{x}","y":"{y}"}}"#)));
        let verifying = DecodingKey::from_ec_components(&x, &y).map_err(|_| TokenKeyError::Form)?;
        Ok(Self { id, x, y, verifying })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn key() -> TokenKey {
        let pair = rcgen::KeyPair::generate().unwrap();
        TokenKey::new(&pair.serialize_der(), pair.public_key_raw()).unwrap()
    }

    fn claims(exp: i64) -> Claims {
        Claims {
            aud: vec!["a".into(), "b".into()],
            exp,
            iat: 0,
            nbf: 0,
            iss: "https://door".into(),
            jti: "1".into(),
            sub: "system:serviceaccount:default:bot".into(),
            account: Account {
                cluster: "root".into(),
                namespace: "default".into(),
                account: Reference { name: "bot".into(), uid: "u".into() },
                secret: None,
            },
        }
    }

    #[test]
    fn only_what_we_signed_for_this_audience_and_time_is_good() {
        let key = key();
        let (good, late) = (claims(i64::from(u32::MAX)), claims(1));
        let token = key.sign(&good).unwrap();
        let to = |audience: &str| vec![audience.to_owned()];
        assert_eq!(key.verify(&token, "https://door", &to("b")), Some(good.clone()));
        assert_eq!(key.verify(&token, "https://door", &to("c")), None);
        // Another address of ours: what was meant for the server is meant for it there.
        let moved = Claims { iss: "https://other".into(), ..good.clone() };
        assert_eq!(key.verify(&token, "https://other", &to("b")), Some(moved));
        assert_eq!(key.verify(&token, "https://other", &to("https://other")), None, "it was for a and b only");
        let own = Claims { aud: vec!["https://door".into(), "a".into()], ..good.clone() };
        let token_of_own = key.sign(&own).unwrap();
        let read = key.verify(&token_of_own, "https://other", &to("https://other")).unwrap();
        assert_eq!(
            (&*read.iss, &*read.aud),
            ("https://other", &["https://door".to_owned(), "a".into(), "https://other".into()][..])
        );
        assert!(key.verify(&token_of_own, "https://other", &to("https://door")).is_some(), "as it stands there");
        assert_eq!(key.verify(&key.sign(&late).unwrap(), "https://door", &to("a")), None);
        let early = Claims { nbf: i64::from(u32::MAX) - 1, ..good };
        assert_eq!(key.verify(&key.sign(&early).unwrap(), "https://door", &to("a")), None);
        for bad in ["", "a.b.c", &token[..token.len() - 2], &"x".repeat(TOKEN_BYTES_MAX + 1)] {
            assert_eq!(key.verify(bad, "https://door", &to("a")), None);
        }
        // Nobody chooses the algorithm but us.
        let parts: Vec<&str> = token.split('.').collect();
        let none = URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
        assert_eq!(key.verify(&format!("{none}.{}.", parts[1]), "https://door", &to("a")), None);
    }

    #[test]
    fn a_newer_key_signs_and_older_ones_still_count() {
        let [old, new, foreign] = [(); 3].map(|()| rcgen::KeyPair::generate().unwrap());
        let key = |pair: &rcgen::KeyPair| TokenKey::new(&pair.serialize_der(), pair.public_key_raw()).unwrap();
        let claims = claims(i64::from(u32::MAX));
        let rotated = key(&new).accepting(old.public_key_raw()).unwrap().accepting(new.public_key_raw()).unwrap();
        let good = |by: &TokenKey, token: &str| by.verify(token, "https://door", &["a".to_owned()]).is_some();
        let [by_old, by_new, by_foreign] =
            [&key(&old), &rotated, &key(&foreign)].map(|signing| signing.sign(&claims).unwrap());
        assert_eq!([&by_old, &by_new, &by_foreign].map(|token| good(&rotated, token)), [true, true, false]);
        assert_eq!([&by_old, &by_new].map(|token| good(&key(&new), token)), [false, true]);
        let published = rotated.key_set()["keys"].as_array().unwrap().len();
        assert_eq!(published, 2);
        assert_eq!(key(&new).accepting(b"no point").unwrap_err(), TokenKeyError::Form);
        let mut many = key(&new);
        for _ in 1..KEYS_MAX {
            many = many.accepting(rcgen::KeyPair::generate().unwrap().public_key_raw()).unwrap();
        }
        assert_eq!(many.accepting(foreign.public_key_raw()).unwrap_err(), TokenKeyError::Many);
    }

    #[test]
    fn keys_that_are_none() {
        assert_eq!(TokenKey::new(b"", b"").unwrap_err(), TokenKeyError::Form);
        let (one, other) = (rcgen::KeyPair::generate().unwrap(), rcgen::KeyPair::generate().unwrap());
        assert_eq!(TokenKey::new(b"x", one.public_key_raw()).unwrap_err(), TokenKeyError::Form);
        assert_eq!(TokenKey::new(&one.serialize_der(), other.public_key_raw()).unwrap_err(), TokenKeyError::Form);
        assert_eq!(key().key_set()["keys"][0]["crv"], "P-256");
    }
}
