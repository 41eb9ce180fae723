//! The gate in front of every path: the request's `Host`, and where a browser says that a page sent it, that page's origin.
//!
//! A page of another site must not reach this server, not even one that has its own name point to 127.0.0.1 (DNS
//! rebinding). A browser then sends that name as `Host`, and on plain HTTP neither `Origin` nor `Sec-Fetch-Site`. So the
//! rule for `Host` holds for every request, also for one that looks like a script's.
//!
//! | header | accepted |
//! |---|---|
//! | `Host` | one, an address of this listener or a configured name ([`Gate`]) |
//! | `Origin` | none, or the origin of `Host`, or a configured name |
//! | `Sec-Fetch-Site` | none, `same-origin`, `none`; any other for a link to the page itself |

use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use hyper::header::{HOST, HeaderMap, HeaderName, ORIGIN};
use hyper::{Method, Uri};

const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const DESTINATION: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// Longest part of a header that a refusal repeats. A host name in use is shorter than that; a header may have
/// kilobytes, which would fill the log.
const MOST_SHOWN: usize = 100;

/// A name under which browsers reach the page: `lab1.example`, or `lab1.example:8443` for one port alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebHost(Authority);

/// Why a text is no [`WebHost`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAHost;

impl FromStr for WebHost {
    type Err = NotAHost;

    fn from_str(text: &str) -> Result<Self, NotAHost> {
        Authority::parse(text).map(Self).ok_or(NotAHost)
    }
}

impl WebHost {
    /// Whether an address has this name. One without a port has one of the default ports.
    fn is(&self, authority: &Authority, default_ports: &[u16]) -> bool {
        let Self(own) = self;
        let is_port = |port: u16| {
            let given = authority.port.map(|given| given == port);
            given.unwrap_or_else(|| default_ports.contains(&port))
        };
        own.host == authority.host && own.port.is_none_or(is_port)
    }
}

/// Which addresses a listener goes by, besides the configured names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Addresses {
    /// `localhost`, `127.0.0.1` and `[::1]`, each with this port.
    Port(u16),
    /// `localhost` and every address in numbers, with any port: of a tunnel or a proxy in front.
    Numbers,
}

/// The rules of one listener.
#[derive(Clone, Debug)]
pub struct Gate {
    addresses: Addresses,
    names: Vec<WebHost>,
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub why: String,
    pub hint: String,
}

impl Gate {
    /// For a listener of one user: the three names of this machine with the listener's own port.
    pub fn of_port(port: u16, names: Vec<WebHost>) -> Self {
        Self {
            addresses: Addresses::Port(port),
            names,
        }
    }

    /// For a listener that scripts, tunnels and proxies call: `localhost` and addresses in numbers, with any port. No
    /// DNS answer makes a number another page's name.
    pub fn of_numbers(names: Vec<WebHost>) -> Self {
        Self {
            addresses: Addresses::Numbers,
            names,
        }
    }

    /// Lets a request pass, whatever its token.
    ///
    /// # Errors
    /// [`Refusal`] for a foreign `Host`, `Origin` or `Sec-Fetch-Site`.
    pub fn check(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
        let host = self.host(uri, headers)?;
        self.origin(&host, headers)?;
        self.site(method, uri, headers)
    }

    fn host(&self, uri: &Uri, headers: &HeaderMap) -> Result<Authority, Refusal> {
        let given = only(headers, &HOST)?;
        let host = given.and_then(Authority::parse);
        // `GET http://other/ HTTP/1.1` names a host as well, which counts before the header (RFC 9112, section 3.2.2).
        let named = uri
            .authority()
            .map(|named| Authority::parse(named.as_str()));
        let host = host.filter(|host| named.is_none_or(|named| named.as_ref() == Some(host)));
        host.filter(|host| self.knows(host)).ok_or_else(|| {
            let shown = given.map_or_else(|| "none".to_owned(), shown);
            let hint = match self.addresses {
                Addresses::Port(port) => format!(
                    "open http://127.0.0.1:{port}/, with the same port at this end of a tunnel; other names need --web-host"
                ),
                Addresses::Numbers => {
                    "call the listener by its address; a name of its own needs --web-host NAME, or web-hosts in the \
                     configuration file"
                        .to_owned()
                }
            };
            Refusal {
                why: format!("the request's Host is not a name of this server: {shown}"),
                hint,
            }
        })
    }

    fn knows(&self, host: &Authority) -> bool {
        let is_address = match self.addresses {
            Addresses::Port(port) => {
                let is_here = matches!(&*host.host, "localhost" | "127.0.0.1" | "[::1]");
                is_here && host.port.unwrap_or(80) == port
            }
            Addresses::Numbers => host.host == "localhost" || host.is_number(),
        };
        // `Host` does not say whether a proxy in front has TLS.
        is_address || self.names.iter().any(|name| name.is(host, &[80, 443]))
    }

    fn origin(&self, host: &Authority, headers: &HeaderMap) -> Result<(), Refusal> {
        let Some(origin) = only(headers, &ORIGIN)? else {
            return Ok(());
        };
        let is_own = |(default, text): (u16, &str)| {
            Authority::parse(text).is_some_and(|origin| {
                let with_port = |one: &Authority| (one.host.clone(), one.port.unwrap_or(default));
                let is_named = self.names.iter().any(|name| name.is(&origin, &[default]));
                is_named || with_port(&origin) == with_port(host)
            })
        };
        let http = origin.strip_prefix("http://").map(|rest| (80, rest));
        let https = origin.strip_prefix("https://").map(|rest| (443, rest));
        if http.or(https).is_some_and(is_own) {
            Ok(())
        } else {
            Err(foreign(format!(
                "a page of another origin sent the request: {}",
                shown(origin)
            )))
        }
    }

    fn site(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
        let site = only(headers, &SITE)?;
        let Some(site) = site.filter(|site| !matches!(*site, "same-origin" | "none")) else {
            return Ok(());
        };
        // A link on a wiki, or in a chat: it opens the page itself in a window of its own, and brings no token.
        let opens = only(headers, &MODE)? == Some("navigate")
            && only(headers, &DESTINATION)? == Some("document");
        let is_read = matches!(*method, Method::GET | Method::HEAD);
        if opens && is_read && uri.path() == "/" {
            Ok(())
        } else {
            Err(foreign(format!(
                "a page of another site sent the request: Sec-Fetch-Site {}",
                shown(site)
            )))
        }
    }
}

fn foreign(why: String) -> Refusal {
    Refusal {
        why,
        hint: "open the page by its own address; programs send neither Origin nor Sec-Fetch-Site"
            .to_owned(),
    }
}

/// The header's value, if there is the header. Two of them are refused: another server may take the other one.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Refusal> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => match value.to_str() {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(foreign(format!("the header {name} is not ASCII"))),
        },
        (Some(_), Some(_)) => Err(foreign(format!("the request has several headers {name}"))),
    }
}

fn shown(text: &str) -> String {
    text.chars().take(MOST_SHOWN).collect()
}

/// A host with a port, as `Host` and origins have them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Authority {
    /// In lower case; an IPv6 address has its brackets.
    host: String,
    port: Option<u16>,
}

impl Authority {
    /// `None` for what is not a name of letters, digits, dots and hyphens, or an address, with at most a port.
    fn parse(text: &str) -> Option<Self> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (address, port) = rest.split_once(']')?;
                address.parse::<Ipv6Addr>().ok()?;
                (&text[..address.len() + 2], port)
            }
            None => text.split_at(text.find(':').unwrap_or(text.len())),
        };
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let is_host = host.starts_with('[') || host.bytes().all(is_name);
        if host.is_empty() || host.len() > 255 || !is_host {
            return None;
        }
        let port = match port.strip_prefix(':') {
            None if port.is_empty() => None,
            // No sign, which a number may have.
            Some(digits) if digits.bytes().all(|digit| digit.is_ascii_digit()) => {
                Some(digits.parse().ok()?)
            }
            _ => return None,
        };
        Some(Self {
            host: host.to_ascii_lowercase(),
            port,
        })
    }

    /// Whether it is an address in the usual notation.
    fn is_number(&self) -> bool {
        self.host.starts_with('[') || self.host.parse::<Ipv4Addr>().is_ok()
    }
}

#[cfg(test)]
mod tests;
