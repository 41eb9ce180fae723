//! The TLS certificate of the admission webhook: creation, and validation as a client would do it.
//!
//! A certificate authority signs one certificate and is then discarded: its key is never written, so no other
//! certificate can be signed. A renewal uses a new authority. The CA bundle keeps the previous one too, while a replica
//! may still serve a certificate signed by it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::civil::Date;
use jiff::{Timestamp, ToSpan as _};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer as _;

/// How long a certificate is valid. The controller renews it long before, so a shorter one would only expire while the
/// cluster is off. A longer one is renewed so seldom that a fault of it stays unseen.
const DAYS: i64 = 365;
/// A certificate that is good for less than this is renewed.
pub const MARGIN: Duration = Duration::from_secs(30 * 24 * 3600);

/// The served certificate of a webhook, and its CA bundle. All of it is PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// The authorities that clients are to trust.
    pub bundle: String,
    pub certificate: String,
    pub key: String,
}

/// Why an identity does not do.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    #[error("cannot read the certificate, its key or its CA bundle as PEM: {0}")]
    Pem(String),
    #[error("the key does not match the certificate, or has an unsupported type")]
    Key(#[source] rustls::Error),
    #[error("the certificate is not valid for `{name}`")]
    Refused {
        name: String,
        #[source]
        error: rustls::Error,
    },
}

impl Identity {
    /// A new one for these names, good from yesterday on.
    ///
    /// # Errors
    /// There is no randomness, or a name is none that a certificate can have.
    pub fn new(names: &[String], today: Date) -> Result<Self, rcgen::Error> {
        let begins = today.saturating_sub(1.day());
        let ends = today.saturating_add(DAYS.days());
        let mut authority = CertificateParams::new(Vec::new())?;
        let name = format!("divvy authority of {today}");
        authority.distinguished_name.push(DnType::CommonName, name);
        authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        // A day more than what it signs, so that it never is what runs out first.
        lasts(&mut authority, begins, ends.saturating_add(1.day()));
        let authority_key = KeyPair::generate()?;
        let bundle = authority.self_signed(&authority_key)?.pem();

        let mut leaf = CertificateParams::new(names)?;
        leaf.distinguished_name.push(DnType::CommonName, "divvy");
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        leaf.use_authority_key_identifier_extension = true;
        lasts(&mut leaf, begins, ends);
        let key = KeyPair::generate()?;
        let issuer = Issuer::new(authority, authority_key);
        Ok(Self {
            bundle,
            certificate: leaf.signed_by(&key, &issuer)?.pem(),
            key: key.serialize_pem(),
        })
    }

    /// The same with the newest authority of another behind its own, so that both are trusted.
    #[must_use]
    pub fn after(mut self, other: &Self) -> Self {
        const END: &str = "-----END CERTIFICATE-----";
        if let Some((first, _)) = other.bundle.split_once(END)
            && !self.bundle.contains(first.trim())
        {
            self.bundle = format!("{}\n{}{END}\n", self.bundle.trim_end(), first.trim_start());
        }
        self
    }

    /// The part of it that a server presents.
    ///
    /// # Errors
    /// It is not readable, or the key is another's.
    pub fn certified(&self) -> Result<CertifiedKey, Unfit> {
        let chain = certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes())
            .map_err(|error| Unfit::Pem(error.to_string()))?;
        CertifiedKey::from_der(chain, key, &default_provider()).map_err(Unfit::Key)
    }

    /// The end of the certificate that a server presents; `None` if it is unreadable.
    pub fn ends(&self) -> Option<Timestamp> {
        let chain = certificates(&self.certificate).ok()?;
        let (_, own) = X509Certificate::from_der(chain.first()?).ok()?;
        Timestamp::from_second(own.validity().not_after.timestamp()).ok()
    }

    /// The first of these names that the certificate lacks, as [`new`](Self::new) writes them; `None` too if it is unreadable.
    pub fn lacks<'n>(&self, names: &'n [String]) -> Option<&'n str> {
        let chain = certificates(&self.certificate).ok()?;
        let (_, own) = X509Certificate::from_der(chain.first()?).ok()?;
        let listed = own.subject_alternative_name().ok()?;
        let has = |name: &&str| {
            let mut listed = listed.iter().flat_map(|names| &names.value.general_names);
            listed.any(|one| match (one, name.parse::<IpAddr>()) {
                (GeneralName::IPAddress(bytes), Ok(IpAddr::V4(ip))) => *bytes == ip.octets(),
                (GeneralName::IPAddress(bytes), Ok(IpAddr::V6(ip))) => *bytes == ip.octets(),
                (GeneralName::DNSName(text), Err(_)) => text == name,
                _ => false,
            })
        };
        names.iter().map(String::as_str).find(|name| !has(name))
    }

    /// Whether a client that trusts the bundle takes it for this name at a time.
    ///
    /// # Errors
    /// It does not, or it is not readable.
    pub fn serves(&self, name: &str, at: Timestamp) -> Result<(), Unfit> {
        let certified = self.certified()?;
        let mut roots = RootCertStore::empty();
        for root in certificates(&self.bundle)? {
            roots
                .add(root)
                .map_err(|error| Unfit::Pem(error.to_string()))?;
        }
        let refused = |error| Unfit::Refused {
            name: name.to_owned(),
            error,
        };
        let provider = Arc::new(default_provider());
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
        let verifier = verifier.map_err(|error| Unfit::Pem(error.to_string()))?;
        let server = ServerName::try_from(name.to_owned());
        let server = server.map_err(|error| Unfit::Pem(error.to_string()))?;
        let (own, between) = certified
            .cert
            .split_first()
            .ok_or_else(|| Unfit::Pem("nothing".into()))?;
        let seconds = u64::try_from(at.as_second()).unwrap_or(0);
        let at = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let verified = verifier.verify_server_cert(own, between, &server, &[], at);
        verified.map(drop).map_err(refused)
    }
}

fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, Unfit> {
    let all = CertificateDer::pem_slice_iter(pem.as_bytes());
    all.collect::<Result<_, _>>()
        .map_err(|error| Unfit::Pem(error.to_string()))
}

fn lasts(params: &mut CertificateParams, begins: Date, ends: Date) {
    let of = |date: Date| {
        let part = |number: i8| u8::try_from(number).unwrap_or(1);
        date_time_ymd(date.year().into(), part(date.month()), part(date.day()))
    };
    params.not_before = of(begins);
    params.not_after = of(ends);
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;

    use super::*;

    const NAME: &str = "divvy-webhook.divvy-system.svc";

    fn on(day: Date) -> Timestamp {
        day.to_zoned(jiff::tz::TimeZone::UTC).unwrap().timestamp()
    }

    fn identity() -> Identity {
        Identity::new(&[NAME.to_owned()], date(2026, 11, 21)).unwrap()
    }

    #[test]
    fn it_is_taken_for_its_name_and_its_year_and_for_nothing_else() {
        let identity = identity();
        identity.serves(NAME, on(date(2026, 11, 21))).unwrap();
        identity.serves(NAME, on(date(2027, 11, 20))).unwrap();
        for (name, day) in [
            ("other.divvy-system.svc", date(2026, 11, 22)),
            (NAME, date(2027, 11, 22)),
            (NAME, date(2026, 11, 19)),
        ] {
            assert!(
                matches!(identity.serves(name, on(day)), Err(Unfit::Refused { .. })),
                "{name} {day}"
            );
        }
    }

    #[test]
    fn a_certificate_lacks_only_names_that_it_was_not_made_for() {
        let names = [NAME, "10.96.0.9", "fd00::1", "*.example.com"].map(str::to_owned);
        let identity = Identity::new(&names, date(2026, 11, 21)).unwrap();
        assert_eq!(identity.lacks(&names), None);
        for later in ["10.96.0.10", "fd00::2", "gpu.example.com"] {
            let names = [NAME.to_owned(), later.to_owned()];
            assert_eq!(identity.lacks(&names), Some(later));
        }
    }

    #[test]
    fn anothers_authority_or_key_does_not_do() {
        let (one, two) = (identity(), identity());
        let now = on(date(2026, 11, 22));
        let unsigned = Identity {
            bundle: two.bundle.clone(),
            ..one.clone()
        };
        assert!(matches!(
            unsigned.serves(NAME, now),
            Err(Unfit::Refused { .. })
        ));
        let stolen = Identity {
            key: two.key,
            ..one.clone()
        };
        assert!(matches!(stolen.serves(NAME, now), Err(Unfit::Key(_))));
        let broken = Identity {
            certificate: "none".into(),
            ..one
        };
        assert!(broken.serves(NAME, now).is_err());
    }

    #[test]
    fn a_renewals_bundle_vouches_for_both_and_holds_no_third() {
        let (first, second, third) = (identity(), identity(), identity());
        let now = on(date(2026, 11, 22));
        let second = second.after(&first);
        second.serves(NAME, now).unwrap();
        let shown_still = Identity {
            bundle: second.bundle.clone(),
            ..first.clone()
        };
        shown_still.serves(NAME, now).unwrap();
        let third = third.after(&second);
        assert_eq!(third.bundle.matches("BEGIN CERTIFICATE").count(), 2);
        let shown_still = Identity {
            bundle: third.bundle.clone(),
            ..second
        };
        shown_still.serves(NAME, now).unwrap();
        let gone = Identity {
            bundle: third.bundle,
            ..first
        };
        assert!(gone.serves(NAME, now).is_err());
    }
}
