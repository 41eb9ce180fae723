//! The extender as a process: its log names a client that cannot talk to it.

#![allow(clippy::unwrap_used)]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::json;

use crate::controller::replica::{Cluster, NAMESPACE, Replica};

const HTTPS: [&str; 6] = [
    "--namespace",
    NAMESPACE,
    "--tls-secret",
    "divvy-extender-tls",
    "--tls-name",
    "127.0.0.1",
];

fn cluster() -> Cluster {
    let cluster = Cluster::new();
    cluster.server.create(json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "divvy-extender-tls", "namespace": NAMESPACE },
    }));
    cluster
}

/// What the server at an address answers to a request over plain HTTP.
fn by_http(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .write_all(b"POST /prioritize HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
        .unwrap();
    let mut answer = Vec::new();
    // Err says that the server closed the connection.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// The same over HTTPS, for a client that trusts these authorities; empty where it gets no answer.
fn by_https(address: SocketAddr, bundle: &str) -> String {
    let mut roots = RootCertStore::empty();
    for root in certificates(bundle) {
        roots.add(root).unwrap();
    }
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = StreamOwned::new(client, TcpStream::connect(address).unwrap());
    let request =
        b"POST /prioritize HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
    let mut answer = Vec::new();
    if stream.write_all(request).is_ok() {
        let _ = stream.read_to_end(&mut answer);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

fn certificates(bundle: &str) -> Vec<CertificateDer<'static>> {
    let all = CertificateDer::pem_slice_iter(bundle.as_bytes());
    all.map(Result::unwrap).collect()
}

#[test]
fn the_certificate_is_in_the_secret_and_a_client_that_trusts_it_is_answered() {
    let cluster = cluster();
    let extender = Replica::of("extender", &cluster, &HTTPS);
    extender.hears(|line| line.contains("serving HTTPS"), || false);
    let secret = cluster
        .server
        .look(|view| view.get("secrets", NAMESPACE, "divvy-extender-tls"));
    let secret: k8s_openapi::api::core::v1::Secret =
        serde_json::from_value(secret.unwrap()).unwrap();
    let bundle = &secret.data.unwrap()["ca.crt"];
    let bundle = String::from_utf8(bundle.0.clone()).unwrap();
    let answer = by_https(extender.address(), &bundle);
    assert!(
        answer.starts_with("HTTP/1.1 400") && answer.contains("the request has no Pod"),
        "{answer}"
    );
    // The next process serves the same certificate, so that the scheduler's CA file stays right.
    drop(extender);
    let next = Replica::of("extender", &cluster, &HTTPS);
    next.hears(|line| line.contains("serving HTTPS"), || false);
    assert!(by_https(next.address(), &bundle).starts_with("HTTP/1.1 400"));
}

#[test]
fn a_client_that_cannot_talk_to_the_extender_is_named_in_its_log() {
    let cluster = cluster();
    let https = Replica::of("extender", &cluster, &HTTPS);
    https.hears(|line| line.contains("serving HTTPS"), || false);
    assert!(!by_http(https.address()).contains("the request has no Pod"));
    let plain = |line: &str| line.contains("WARN") && line.contains("sent plain HTTP");
    assert!(
        https
            .hears(plain, || false)
            .unwrap()
            .contains("client=127.0.0.1")
    );
    assert_eq!(by_https(https.address(), ""), "");
    let distrust = |line: &str| line.contains("WARN") && line.contains("refused the certificate");
    https.hears(distrust, || false);
    let http = Replica::of("extender", &cluster, &[]);
    assert_eq!(by_https(http.address(), ""), "");
    let none = |line: &str| line.contains("WARN") && line.contains("sent no HTTP request");
    http.hears(none, || false);
    assert!(by_http(http.address()).contains("the request has no Pod"));
}
