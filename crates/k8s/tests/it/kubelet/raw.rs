//! One gRPC call, byte by byte, with an `:authority` that no HTTP library here would send, as kubelet's does.
//!
//! Written from RFC 9113 (frames) and RFC 7541 (headers as literals, without compression).

use std::path::Path;

use divvy_k8s::node::protocol::registration::PluginInfo;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;

const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// PROTOCOL_ERROR of RFC 9113.
pub const PROTOCOL_ERROR: u32 = 1;

/// The stream of the call.
const CALL: u32 = 1;

#[derive(Debug, PartialEq)]
pub enum Answer {
    Info(PluginInfo),
    /// The stream or the connection was broken off, with this code.
    Broken(u32),
}

/// What kubelet sends as `:authority` when it dials a socket by its path: grpc-go percent-encodes all that may not stand
/// in an authority (`encodeAuthority`), and `@` may.
pub fn authority(socket: &Path) -> String {
    let mut text = String::new();
    for byte in socket.to_str().unwrap().bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:[]@".contains(&byte) {
            text.push(char::from(byte))
        } else {
            text.push_str(&format!("%{byte:02X}"))
        }
    }
    text
}

/// Calls GetInfo over a connection of its own.
pub async fn get_info(socket: &Path, authority: &str) -> Answer {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    let mut out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    frame(&mut out, SETTINGS, 0, 0, &[]);
    let mut headers = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/pluginregistration.Registration/GetInfo"),
        (":authority", authority),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ] {
        headers.push(0);
        literal(&mut headers, name);
        literal(&mut headers, value);
    }
    frame(&mut out, HEADERS, END_HEADERS, CALL, &headers);
    // Not compressed, no bytes: an empty message.
    frame(&mut out, DATA, END_STREAM, CALL, &[0; 5]);
    stream.write_all(&out).await.unwrap();
    let mut message = Vec::new();
    loop {
        let (kind, flags, of, body) = read(&mut stream).await;
        match kind {
            SETTINGS if flags & ACK == 0 => {
                let mut ack = Vec::new();
                frame(&mut ack, SETTINGS, ACK, 0, &[]);
                stream.write_all(&ack).await.unwrap();
            }
            RST_STREAM if of == CALL => return Answer::Broken(number(&body)),
            GOAWAY => return Answer::Broken(number(&body[4..])),
            DATA if of == CALL => message.extend(body),
            HEADERS if of == CALL && flags & END_STREAM != 0 => {
                return Answer::Info(PluginInfo::decode(&message[5..]).unwrap());
            }
            _ => {}
        }
    }
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, of: u32, body: &[u8]) {
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    out.extend(&length[1..]);
    out.extend([kind, flags]);
    out.extend(of.to_be_bytes());
    out.extend(body);
}

async fn read(stream: &mut UnixStream) -> (u8, u8, u32, Vec<u8>) {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.unwrap();
    let [a, b, c, kind, flags, of @ ..] = head;
    let mut body = vec![0; usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap()];
    stream.read_exact(&mut body).await.unwrap();
    (kind, flags, u32::from_be_bytes(of), body)
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().unwrap())
}

/// A text as a literal: its length in a prefix of 7 bits and then groups of 7, and its bytes.
fn literal(out: &mut Vec<u8>, text: &str) {
    let most = 0x7f;
    match text.len() {
        short if short < most => out.push(u8::try_from(short).unwrap()),
        long => {
            out.push(0x7f);
            let mut rest = long - most;
            while rest >= 0x80 {
                out.push(u8::try_from(rest % 0x80).unwrap() | 0x80);
                rest /= 0x80;
            }
            out.push(u8::try_from(rest).unwrap());
        }
    }
    out.extend(text.bytes());
}
