//! Storage of the webhook's certificate: a Secret that all replicas share, or mounted files.

use std::path::PathBuf;
use std::{fs, io};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, PostParams};
use kube::{Client, Resource as _};
use tracing::info;

use super::certificate::{Identity, MARGIN, Unfit};
use crate::base::cluster::{MANAGED_BY, chain, is_already_exists, is_conflict, is_missing};

const BUNDLE: &str = "ca.crt";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
/// Replicas that lose a race look again; more often than this it is no race. Two or three replicas lose one race each;
/// so ten of them are a fault.
const TRIES: usize = 10;

/// Where it lies.
#[derive(Clone, Debug)]
pub enum CertSource {
    Secret {
        namespace: String,
        name: String,
    },
    Files {
        certificate: PathBuf,
        key: PathBuf,
        bundle: Option<PathBuf>,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("cannot read or write the Secret {name}")]
    Secret {
        name: String,
        #[source]
        error: Box<kube::Error>,
    },
    #[error("cannot write the Secret {name}: other clients keep changing it")]
    Contended { name: String },
    #[error("cannot create a certificate")]
    Make(#[from] rcgen::Error),
    #[error("{}", path.display())]
    File {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("{}", path.display())]
    Unfit {
        path: PathBuf,
        #[source]
        error: Unfit,
    },
}

/// The certificate to serve for this host, first of `names`. In a Secret, the first replica that sees the need creates
/// or renews it. `shown` is the one that this replica serves: after a renewal its authority stays in the CA bundle.
///
/// # Errors
/// The Secret or the files cannot be had, or the files do not do.
pub async fn ensure_identity(
    client: &Client,
    place: &CertSource,
    names: &[String],
    shown: Option<&Identity>,
    now: Timestamp,
) -> Result<Identity, IdentityError> {
    match place {
        CertSource::Files {
            certificate,
            key,
            bundle,
        } => from_files(certificate, key, bundle.as_ref()),
        CertSource::Secret { namespace, name } => {
            let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
            from_secret(&api, name, names, shown, now).await
        }
    }
}

async fn from_secret(
    api: &Api<Secret>,
    name: &str,
    names: &[String],
    shown: Option<&Identity>,
    now: Timestamp,
) -> Result<Identity, IdentityError> {
    let failed = |error| IdentityError::Secret {
        name: name.to_owned(),
        error: Box::new(error),
    };
    let host = names.first().map_or("", String::as_str);
    for _ in 0..TRIES {
        let there = match api.get(name).await {
            Ok(secret) => Some(secret),
            Err(error) if is_missing(&error) => None,
            Err(error) => return Err(failed(error)),
        };
        let had = there.as_ref().and_then(read);
        if let Some(identity) = &had {
            match (identity.serves(host, now + MARGIN), identity.lacks(names)) {
                (Ok(()), None) => return Ok(identity.clone()),
                (Ok(()), Some(lacked)) => {
                    info!(
                        secret = name,
                        lacked, "renewing the certificate for a further name"
                    );
                }
                (Err(why), _) => {
                    info!(secret = name, why = chain(&why), "renewing the certificate")
                }
            }
        }
        let mut made = Identity::new(names, now.to_zoned(TimeZone::UTC).date())?;
        if let Some(earlier) = had.as_ref().or(shown)
            && earlier.serves(host, now).is_ok()
        {
            made = made.after(earlier);
        }
        let written = match there {
            None => {
                api.create(&PostParams::default(), &secret(name, &made))
                    .await
            }
            Some(mut there) => {
                // With the version that was read, so the second of two renewals fails.
                fill(&mut there, &made);
                api.replace(name, &PostParams::default(), &there).await
            }
        };
        match written {
            Ok(_) => {
                info!(secret = name, "created a certificate");
                return Ok(made);
            }
            Err(error)
                if is_already_exists(&error) || is_conflict(&error) || is_missing(&error) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Err(IdentityError::Contended {
        name: name.to_owned(),
    })
}

fn read(secret: &Secret) -> Option<Identity> {
    let data = secret.data.as_ref()?;
    let text = |key: &str| String::from_utf8(data.get(key)?.0.clone()).ok();
    Some(Identity {
        bundle: text(BUNDLE)?,
        certificate: text(CERTIFICATE)?,
        key: text(KEY)?,
    })
}

fn secret(name: &str, identity: &Identity) -> Secret {
    let mut secret = Secret {
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    };
    let (key, value) = MANAGED_BY;
    secret.meta_mut().name = Some(name.to_owned());
    secret.meta_mut().labels = Some([(key.to_owned(), value.to_owned())].into());
    fill(&mut secret, identity);
    secret
}

fn fill(secret: &mut Secret, identity: &Identity) {
    let data = secret.data.get_or_insert_default();
    for (key, text) in [
        (BUNDLE, &identity.bundle),
        (CERTIFICATE, &identity.certificate),
        (KEY, &identity.key),
    ] {
        data.insert(key.to_owned(), ByteString(text.clone().into_bytes()));
    }
}

fn from_files(
    certificate: &PathBuf,
    key: &PathBuf,
    bundle: Option<&PathBuf>,
) -> Result<Identity, IdentityError> {
    let read = |path: &PathBuf| {
        fs::read_to_string(path).map_err(|error| IdentityError::File {
            path: path.clone(),
            error,
        })
    };
    let identity = Identity {
        bundle: bundle.map(&read).transpose()?.unwrap_or_default(),
        certificate: read(certificate)?,
        key: read(key)?,
    };
    match identity.certified() {
        Ok(_) => Ok(identity),
        Err(error) => Err(IdentityError::Unfit {
            path: certificate.clone(),
            error,
        }),
    }
}
