//! Identities: who somebody is, by an operator's word.
//!
//! An operator signs certificates; a certificate says that whoever has a certain key is a server, a
//! client of a name and a quota, or an operator. Servers and clients keep their own key, their
//! certificate and the public keys of the operators they believe, several while these are exchanged.
//! So whoever learns a client's key is that client and nobody else; servers learn of a new client from
//! its certificate; and the operator's own key is needed for nothing but signing.
//!
//! All of it is one file of text, a line for each thing (see [`Credentials::to_text`]).

use super::noise::public_of;
use super::wipe;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use sha2::{Digest, Sha256};
use std::fmt::{self, Write};

/// The first line of a file.
const TITLE: &str = "muninn identity 1";
const SIGNED_LABEL: &[u8] = b"muninn certificate 1";
const NAME_MAX: usize = 64;
/// Set in the role of a certificate that expires; so who knows nothing of that believes none.
const EXPIRES: u8 = 0x80;

/// A time of day that people share, in seconds since 1970. Whoever drives this hands it in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixTime(pub u64);

/// What somebody may be. What each may do is one table: [`crate::server::permits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    Server,
    Client,
    Operator,
}

impl Role {
    pub const ALL: [Role; 3] = [Role::Server, Role::Client, Role::Operator];
    pub const fn name(self) -> &'static str {
        match self {
            Role::Server => "server",
            Role::Client => "client",
            Role::Operator => "operator",
        }
    }
    fn from_name(name: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.name() == name)
    }
    fn from_byte(byte: u8) -> Option<Role> {
        Role::ALL.into_iter().find(|role| *role as u8 == byte)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    #[error("its certificate makes no sense")]
    Malformed,
    #[error("no operator known here has signed the certificate of '{0}'")]
    Unknown(String),
    #[error("the key of '{0}' was revoked")]
    Revoked(String),
    #[error("the key of '{0}' has expired")]
    Expired(String),
    #[error("'{0}' is not a server")]
    NoServer(String),
    #[error("line {0} of the identity makes no sense")]
    Line(usize),
    #[error("the identity lacks its {0}")]
    Lacks(&'static str),
}

/// Who somebody was found to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub role: Role,
    pub name: String,
    /// Bytes that a client may hold, where the operator has said.
    pub quota: Option<u64>,
    /// Of the key: short enough to be read out.
    pub id: String,
    /// From then on it is nobody's.
    pub until: Option<UnixTime>,
    /// The operator that was believed.
    pub by: Option<[u8; 32]>,
}

/// An operator's word for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    pub role: Role,
    pub name: String,
    pub quota: Option<u64>,
    /// From then on it says nothing.
    pub until: Option<UnixTime>,
    pub public: [u8; 32],
    signature: [u8; 64],
}

fn key_id(public: &[u8; 32]) -> String {
    hex(&Sha256::digest(public)[..8])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let pairs = digits.chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).ok().filter(|p| p.len() == 2)?;
        u8::from_str_radix(pair, 16).ok()
    });
    pairs.collect()
}

/// An operator's public key, as it is printed.
pub fn parse_public(text: &str) -> Option<[u8; 32]> {
    unhex_array(text)
}

fn unhex_array<const N: usize>(text: &str) -> Option<[u8; N]> {
    unhex(text)?.try_into().ok()
}

impl Certificate {
    /// All that an operator vouches for.
    fn signed_part(&self) -> Vec<u8> {
        let expires = self.until.map_or(0, |_| EXPIRES);
        let quota = self.quota.map_or(u64::MAX, |q| q.min(u64::MAX - 1));
        let mut bytes = vec![self.role as u8 | expires];
        bytes.extend_from_slice(&quota.to_le_bytes());
        if let Some(UnixTime(until)) = self.until {
            bytes.extend_from_slice(&until.to_le_bytes());
        }
        bytes.extend_from_slice(&self.public);
        bytes.push(self.name.len() as u8);
        bytes.extend_from_slice(self.name.as_bytes());
        bytes
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.signed_part();
        bytes.extend_from_slice(&self.signature);
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Certificate, IdentityError> {
        let read = || {
            let (role, rest) = bytes.split_first()?;
            let (quota, rest) = rest.split_first_chunk::<8>()?;
            let (until, rest) = match role & EXPIRES {
                0 => (None, rest),
                _ => {
                    let (until, rest) = rest.split_first_chunk::<8>()?;
                    (Some(UnixTime(u64::from_le_bytes(*until))), rest)
                }
            };
            let (public, rest) = rest.split_first_chunk::<32>()?;
            let (len, rest) = rest.split_first()?;
            let (name, rest) = rest.split_at_checked(usize::from(*len))?;
            let name = std::str::from_utf8(name).ok()?;
            let quota = u64::from_le_bytes(*quota);
            let fits = name.len() <= NAME_MAX && !name.chars().any(char::is_control);
            Some(Certificate {
                role: Role::from_byte(*role & !EXPIRES)?,
                name: name.to_string(),
                quota: (quota != u64::MAX).then_some(quota),
                until,
                public: *public,
                signature: rest.try_into().ok().filter(|_| fits)?,
            })
        };
        read().ok_or(IdentityError::Malformed)
    }

    fn is_signed_by(&self, operator: &[u8; 32]) -> bool {
        let message = [SIGNED_LABEL, &self.signed_part()].concat();
        UnparsedPublicKey::new(&ED25519, operator)
            .verify(&message, &self.signature)
            .is_ok()
    }

    pub fn id(&self) -> String {
        key_id(&self.public)
    }

    /// What it says, whoever has signed it.
    fn identity(&self) -> Identity {
        Identity {
            role: self.role,
            name: self.name.clone(),
            quota: self.quota,
            id: self.id(),
            until: self.until,
            by: None,
        }
    }
}

impl Identity {
    /// Whether its time is over.
    pub fn has_expired(&self, now: UnixTime) -> bool {
        self.until.is_some_and(|until| now >= until)
    }
}

/// The key that signs.
pub struct Operator {
    seed: [u8; 32],
    pair: Ed25519KeyPair,
}

impl fmt::Debug for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Operator(…)")
    }
}

impl Operator {
    pub fn from_seed(seed: [u8; 32]) -> Operator {
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).expect("a seed has 32 bytes");
        Operator { seed, pair }
    }

    pub fn public(&self) -> [u8; 32] {
        let public = self.pair.public_key().as_ref().try_into();
        public.expect("a public key has 32 bytes")
    }

    /// An identity of its own for `secret`, which is random, that never expires.
    pub fn sign(
        &self,
        role: Role,
        name: &str,
        quota: Option<u64>,
        secret: [u8; 32],
    ) -> Result<Credentials, IdentityError> {
        self.sign_until(None, role, name, quota, secret)
    }

    /// The same, for a time.
    pub fn sign_until(
        &self,
        until: Option<UnixTime>,
        role: Role,
        name: &str,
        quota: Option<u64>,
        secret: [u8; 32],
    ) -> Result<Credentials, IdentityError> {
        if name.is_empty() || name.len() > NAME_MAX || name.chars().any(char::is_control) {
            return Err(IdentityError::Malformed);
        }
        let mut certificate = Certificate {
            role,
            name: name.to_string(),
            quota,
            until,
            public: public_of(&secret),
            signature: [0; 64],
        };
        let message = [SIGNED_LABEL, &certificate.signed_part()].concat();
        let signature = self.pair.sign(&message);
        let signature = signature.as_ref().try_into();
        certificate.signature = signature.map_err(|_| IdentityError::Malformed)?;
        Ok(Credentials {
            secret,
            certificate,
            operators: vec![self.public()],
            revoked: Vec::new(),
            seed: (role == Role::Operator).then_some(self.seed),
        })
    }
}

/// What a server, a client or an operator keeps. Printing it shows nothing of its secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    secret: [u8; 32],
    certificate: Certificate,
    operators: Vec<[u8; 32]>,
    /// Ids of keys that are not believed any more, whoever signed them.
    revoked: Vec<String>,
    /// An operator's, to sign with.
    seed: Option<[u8; 32]>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Certificate { role, name, .. } = &self.certificate;
        write!(f, "Credentials({} '{name}')", role.name())
    }
}

impl Drop for Credentials {
    fn drop(&mut self) {
        wipe(&mut self.secret);
        if let Some(seed) = &mut self.seed {
            wipe(seed);
        }
    }
}

impl Credentials {
    pub fn is_text(contents: &[u8]) -> bool {
        contents.starts_with(TITLE.as_bytes())
    }

    pub(super) fn secret(&self) -> &[u8; 32] {
        &self.secret
    }
    /// Shows where the secrets lie in memory.
    pub(crate) fn for_each_secret(&self, mut show: impl FnMut(&[u8])) {
        show(&self.secret);
        if let Some(seed) = &self.seed {
            show(seed);
        }
    }
    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }
    pub fn identity(&self) -> Identity {
        self.certificate.identity()
    }
    /// The key to sign with, if this is an operator's file.
    pub fn operator(&self) -> Option<Operator> {
        self.seed.map(Operator::from_seed)
    }
    pub fn operators(&self) -> &[[u8; 32]] {
        &self.operators
    }
    /// Believes another operator as well.
    pub fn trust(&mut self, operator: [u8; 32]) {
        if !self.operators.contains(&operator) {
            self.operators.push(operator);
        }
    }
    /// Believes one operator no more.
    pub fn distrust(&mut self, operator: [u8; 32]) {
        self.operators.retain(|known| *known != operator);
    }
    /// Why somebody who was believed before is not any more.
    pub(crate) fn doubts(&self, identity: &Identity, now: UnixTime) -> Option<&'static str> {
        let distrusts = |by| !self.operators.contains(by);
        match identity {
            who if self.has_revoked(&who.id) => Some("revoked"),
            who if who.by.as_ref().is_some_and(distrusts) => Some("distrusted"),
            who if who.has_expired(now) => Some("expired"),
            _ => None,
        }
    }
    pub fn revoke(&mut self, id: &str) {
        if !self.has_revoked(id) {
            self.revoked.push(id.to_string());
        }
    }
    /// Whether a key of this id is not believed any more.
    pub fn has_revoked(&self, id: &str) -> bool {
        self.revoked.iter().any(|revoked| revoked == id)
    }
    /// The same identity with another key, signed anew. Whom it believes stays, and the operator that has
    /// signed it is believed as well.
    pub fn renew(
        &self,
        by: &Operator,
        until: Option<UnixTime>,
        secret: [u8; 32],
    ) -> Result<Credentials, IdentityError> {
        let Certificate {
            role, name, quota, ..
        } = &self.certificate;
        let mut renewed = by.sign_until(until, *role, name, *quota, secret)?;
        // An operator's file keeps the key to sign with: who vouches for it is another matter.
        renewed.seed = self.seed;
        renewed.revoked.clone_from(&self.revoked);
        for operator in &self.operators {
            renewed.trust(*operator);
        }
        Ok(renewed)
    }

    /// Whose key it is, if one of our operators says so and says it still.
    pub fn believe(
        &self,
        certificate: &Certificate,
        now: UnixTime,
    ) -> Result<Identity, IdentityError> {
        let mut identity = certificate.identity();
        let mut known = self.operators.iter();
        let Some(by) = known.find(|key| certificate.is_signed_by(key)) else {
            return Err(IdentityError::Unknown(identity.name));
        };
        identity.by = Some(*by);
        if self.has_revoked(&identity.id) {
            return Err(IdentityError::Revoked(identity.name));
        }
        if identity.has_expired(now) {
            return Err(IdentityError::Expired(identity.name));
        }
        Ok(identity)
    }

    /// As a file. Lines of operators and of revoked ids may be added and removed by hand.
    pub fn to_text(&self) -> String {
        let Certificate { role, name, .. } = &self.certificate;
        let mut text = format!(
            "{TITLE}\n# {} {name}, key {}\n",
            role.name(),
            self.certificate.id()
        );
        let mut line = |word: &str, value: &str| _ = writeln!(text, "{word} {value}");
        line("role", role.name());
        line("secret", &hex(&self.secret));
        line("certificate", &hex(&self.certificate.encode()));
        if let Some(seed) = &self.seed {
            line("signs", &hex(seed));
        }
        for operator in &self.operators {
            line("operator", &hex(operator));
        }
        for id in &self.revoked {
            line("revoked", id);
        }
        text
    }

    pub fn from_text(text: &str) -> Result<Credentials, IdentityError> {
        let (mut secret, mut certificate, mut seed, mut role) = (None, None, None, None);
        let (mut operators, mut revoked) = (Vec::new(), Vec::new());
        for (number, line) in text.lines().enumerate().map(|(n, l)| (n + 1, l.trim())) {
            if number == 1 || line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = || IdentityError::Line(number);
            let (word, value) = line.split_once(' ').ok_or_else(wrong)?;
            let value = value.trim();
            match word {
                "role" => role = Some(Role::from_name(value).ok_or_else(wrong)?),
                "secret" => secret = Some(unhex_array(value).ok_or_else(wrong)?),
                "signs" => seed = Some(unhex_array(value).ok_or_else(wrong)?),
                "certificate" => {
                    let bytes = unhex(value).ok_or_else(wrong)?;
                    certificate = Some(Certificate::decode(&bytes).map_err(|_| wrong())?);
                }
                "operator" => operators.push(unhex_array(value).ok_or_else(wrong)?),
                "revoked" => revoked.push(value.to_string()),
                _ => return Err(wrong()),
            }
        }
        let certificate = certificate.ok_or(IdentityError::Lacks("certificate"))?;
        let secret: [u8; 32] = secret.ok_or(IdentityError::Lacks("secret"))?;
        let fits = public_of(&secret) == certificate.public && role == Some(certificate.role);
        if !fits {
            return Err(IdentityError::Malformed);
        }
        if operators.is_empty() {
            return Err(IdentityError::Lacks("operator"));
        }
        Ok(Credentials {
            secret,
            certificate,
            operators,
            revoked,
            seed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixTime = UnixTime(1_800_000_000);

    #[test]
    fn an_identity_is_believed_for_its_operator_only() {
        let (ours, theirs) = (Operator::from_seed([1; 32]), Operator::from_seed([2; 32]));
        let server = ours.sign(Role::Server, "rack-1", None, [3; 32]).unwrap();
        let client = ours.sign(Role::Client, "batch", Some(7), [4; 32]).unwrap();
        let found = server.believe(client.certificate(), NOW).unwrap();
        assert_eq!(found.role, Role::Client);
        assert_eq!((found.name.as_str(), found.quota), ("batch", Some(7)));
        // Another operator's word is nothing here, until it is trusted.
        let foreign = theirs.sign(Role::Client, "batch", None, [5; 32]).unwrap();
        let unknown = IdentityError::Unknown("batch".to_string());
        assert_eq!(server.believe(foreign.certificate(), NOW), Err(unknown));
        let mut both = server.clone();
        both.trust(theirs.public());
        assert!(both.believe(foreign.certificate(), NOW).is_ok());
        both.distrust(ours.public());
        assert!(both.believe(client.certificate(), NOW).is_err());
        // A certificate cannot be changed: neither its role, nor its quota, nor its key.
        let bytes = client.certificate().encode();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            if let Ok(changed) = Certificate::decode(&changed) {
                assert!(server.believe(&changed, NOW).is_err(), "byte {at}");
            }
        }
        // Renewed by another operator, it is who it was, with another key; both are believed.
        let mut renewed = client.renew(&theirs, None, [9; 32]).unwrap();
        assert_eq!(renewed.identity().name, "batch");
        assert_eq!(renewed.identity().quota, Some(7));
        assert_ne!(renewed.certificate().id(), client.certificate().id());
        assert!(renewed.believe(server.certificate(), NOW).is_ok());
        assert!(server.believe(renewed.certificate(), NOW).is_err());
        renewed.distrust(ours.public());
        assert!(renewed.believe(server.certificate(), NOW).is_err());
        let mut strict = server.clone();
        strict.revoke(&client.certificate().id());
        let revoked = IdentityError::Revoked("batch".to_string());
        assert_eq!(strict.believe(client.certificate(), NOW), Err(revoked));
    }

    #[test]
    fn a_file_reads_back_and_says_nothing_when_printed() {
        let operator = Operator::from_seed([1; 32]);
        let mut client = operator
            .sign(Role::Client, "batch", Some(1 << 30), [4; 32])
            .unwrap();
        client.revoke("0123456789abcdef");
        let text = client.to_text();
        assert!(Credentials::is_text(text.as_bytes()));
        let again = Credentials::from_text(&text).unwrap();
        assert!(again == client);
        assert_eq!(format!("{again:?}"), "Credentials(client 'batch')");
        assert!(client.operator().is_none());
        let own = operator.sign(Role::Operator, "ops", None, [6; 32]).unwrap();
        let again = Credentials::from_text(&own.to_text()).unwrap();
        assert_eq!(again.operator().unwrap().public(), operator.public());
        let cut = text.replace("certificate", "certificat");
        assert_eq!(Credentials::from_text(&cut), Err(IdentityError::Line(5)));
        let other = text.replace(&hex(&[4; 32]), &hex(&[9; 32]));
        assert_eq!(
            Credentials::from_text(&other),
            Err(IdentityError::Malformed)
        );
    }

    #[test]
    fn a_key_is_believed_until_its_time_is_over() {
        let operator = Operator::from_seed([1; 32]);
        let server = operator
            .sign(Role::Server, "rack-1", None, [3; 32])
            .unwrap();
        let sign = |until| operator.sign_until(until, Role::Client, "batch", Some(7), [4; 32]);
        let client = sign(Some(NOW)).unwrap();
        let found = server.believe(client.certificate(), UnixTime(NOW.0 - 1));
        assert_eq!(found.unwrap().until, Some(NOW));
        let expired = IdentityError::Expired("batch".to_string());
        for late in [NOW.0, NOW.0 + 1, u64::MAX] {
            let found = server.believe(client.certificate(), UnixTime(late));
            assert_eq!(found, Err(expired.clone()));
        }
        // How long cannot be changed, nor left out, nor taken from elsewhere.
        let bytes = client.certificate().encode();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                if let Ok(changed) = Certificate::decode(&changed) {
                    assert!(server.believe(&changed, NOW).is_err(), "byte {at}");
                }
            }
        }
        let mut endless = bytes.clone();
        endless[0] &= !EXPIRES;
        endless.drain(9..17);
        let endless = Certificate::decode(&endless).unwrap();
        assert_eq!(endless.until, None);
        assert!(server.believe(&endless, NOW).is_err());
        // A file keeps it; one that never expires reads as it always did.
        let again = Credentials::from_text(&client.to_text()).unwrap();
        assert!(again == client);
        assert_eq!(sign(None).unwrap().certificate().encode()[0], 1);
    }
}
