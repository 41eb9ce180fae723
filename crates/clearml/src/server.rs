//! A client of the ClearML API server: the calls that a daemon of the stock agent makes, and no others.
//!
//! ```text
//! typed call ──► call: token, headers, size ──► HTTP ──┬─ 200: data
//!                  ▲ log in again, once ◄──── 401 ─────┤
//!                  └ later, with back-off ◄─ 429 502 503 509, no connection
//! ```

mod body;
mod calls;
mod clock;
mod error;
mod http;
mod retry;
mod token;

pub use body::{
    Container, Entry, Event, Popped, QueueFacts, Stats, Status, StatusReport, Task, Worker,
    WorkerTask,
};
pub use clock::now_ms;
pub use error::{ServerError, Subcode};
pub use http::Server;
