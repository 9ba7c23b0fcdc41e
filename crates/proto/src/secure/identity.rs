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
}

/// An operator's word for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    pub role: Role,
    pub name: String,
    pub quota: Option<u64>,
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
    fn signed_part(role: Role, name: &str, quota: Option<u64>, public: &[u8; 32]) -> Vec<u8> {
        let mut bytes = vec![role as u8];
        bytes.extend_from_slice(
            &quota
                .map_or(u64::MAX, |q| q.min(u64::MAX - 1))
                .to_le_bytes(),
        );
        bytes.extend_from_slice(public);
        bytes.push(name.len() as u8);
        bytes.extend_from_slice(name.as_bytes());
        bytes
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Certificate::signed_part(self.role, &self.name, self.quota, &self.public);
        bytes.extend_from_slice(&self.signature);
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Certificate, IdentityError> {
        let read = || {
            let (role, rest) = bytes.split_first()?;
            let (quota, rest) = rest.split_first_chunk::<8>()?;
            let (public, rest) = rest.split_first_chunk::<32>()?;
            let (len, rest) = rest.split_first()?;
            let (name, rest) = rest.split_at_checked(usize::from(*len))?;
            let name = std::str::from_utf8(name).ok()?;
            let quota = u64::from_le_bytes(*quota);
            let fits = name.len() <= NAME_MAX && !name.chars().any(char::is_control);
            Some(Certificate {
                role: Role::from_byte(*role)?,
                name: name.to_string(),
                quota: (quota != u64::MAX).then_some(quota),
                public: *public,
                signature: rest.try_into().ok().filter(|_| fits)?,
            })
        };
        read().ok_or(IdentityError::Malformed)
    }

    fn is_signed_by(&self, operator: &[u8; 32]) -> bool {
        let part = Certificate::signed_part(self.role, &self.name, self.quota, &self.public);
        let message = [SIGNED_LABEL, &part].concat();
        UnparsedPublicKey::new(&ED25519, operator)
            .verify(&message, &self.signature)
            .is_ok()
    }

    pub fn id(&self) -> String {
        key_id(&self.public)
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

    /// An identity of its own for `secret`, which is random.
    pub fn sign(
        &self,
        role: Role,
        name: &str,
        quota: Option<u64>,
        secret: [u8; 32],
    ) -> Result<Credentials, IdentityError> {
        if name.is_empty() || name.len() > NAME_MAX || name.chars().any(char::is_control) {
            return Err(IdentityError::Malformed);
        }
        let public = public_of(&secret);
        let part = Certificate::signed_part(role, name, quota, &public);
        let signature = self.pair.sign(&[SIGNED_LABEL, &part].concat());
        let signature = signature.as_ref().try_into();
        let certificate = Certificate {
            role,
            name: name.to_string(),
            quota,
            public,
            signature: signature.map_err(|_| IdentityError::Malformed)?,
        };
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
        let Certificate {
            role, name, quota, ..
        } = self.certificate.clone();
        Identity {
            role,
            name,
            quota,
            id: self.certificate.id(),
        }
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
    pub fn renew(&self, by: &Operator, secret: [u8; 32]) -> Result<Credentials, IdentityError> {
        let Certificate {
            role, name, quota, ..
        } = &self.certificate;
        let mut renewed = by.sign(*role, name, *quota, secret)?;
        // An operator's file keeps the key to sign with: who vouches for it is another matter.
        renewed.seed = self.seed;
        renewed.revoked.clone_from(&self.revoked);
        for operator in &self.operators {
            renewed.trust(*operator);
        }
        Ok(renewed)
    }

    /// Whose key it is, if one of our operators says so.
    pub fn believe(&self, certificate: &Certificate) -> Result<Identity, IdentityError> {
        let name = &certificate.name;
        let (known, id) = (&self.operators, certificate.id());
        if !known.iter().any(|key| certificate.is_signed_by(key)) {
            return Err(IdentityError::Unknown(name.clone()));
        }
        if self.has_revoked(&id) {
            return Err(IdentityError::Revoked(name.clone()));
        }
        Ok(Identity {
            role: certificate.role,
            name: name.clone(),
            quota: certificate.quota,
            id,
        })
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

    #[test]
    fn an_identity_is_believed_for_its_operator_only() {
        let (ours, theirs) = (Operator::from_seed([1; 32]), Operator::from_seed([2; 32]));
        let server = ours.sign(Role::Server, "rack-1", None, [3; 32]).unwrap();
        let client = ours.sign(Role::Client, "batch", Some(7), [4; 32]).unwrap();
        let found = server.believe(client.certificate()).unwrap();
        assert_eq!(found.role, Role::Client);
        assert_eq!((found.name.as_str(), found.quota), ("batch", Some(7)));
        // Another operator's word is nothing here, until it is trusted.
        let foreign = theirs.sign(Role::Client, "batch", None, [5; 32]).unwrap();
        let unknown = IdentityError::Unknown("batch".to_string());
        assert_eq!(server.believe(foreign.certificate()), Err(unknown));
        let mut both = server.clone();
        both.trust(theirs.public());
        assert!(both.believe(foreign.certificate()).is_ok());
        both.distrust(ours.public());
        assert!(both.believe(client.certificate()).is_err());
        // A certificate cannot be changed: neither its role, nor its quota, nor its key.
        let bytes = client.certificate().encode();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            if let Ok(changed) = Certificate::decode(&changed) {
                assert!(server.believe(&changed).is_err(), "byte {at}");
            }
        }
        // Renewed by another operator, it is who it was, with another key; both are believed.
        let mut renewed = client.renew(&theirs, [9; 32]).unwrap();
        assert_eq!(renewed.identity().name, "batch");
        assert_eq!(renewed.identity().quota, Some(7));
        assert_ne!(renewed.certificate().id(), client.certificate().id());
        assert!(renewed.believe(server.certificate()).is_ok());
        assert!(server.believe(renewed.certificate()).is_err());
        renewed.distrust(ours.public());
        assert!(renewed.believe(server.certificate()).is_err());
        let mut strict = server.clone();
        strict.revoke(&client.certificate().id());
        let revoked = IdentityError::Revoked("batch".to_string());
        assert_eq!(strict.believe(client.certificate()), Err(revoked));
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
}
