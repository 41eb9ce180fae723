//! What is to go wrong with which call.

use std::time::Duration;

use tokio::sync::watch;

/// When in a call's life something happens to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// Nothing of it has been done.
    Before,
    /// All of it has been done, and the caller knows nothing of it.
    After,
}

#[derive(Clone, Debug)]
pub(crate) enum What {
    Answer {
        code: u16,
        message: String,
    },
    Drop,
    Wait(Duration),
    Hold {
        reached: watch::Sender<bool>,
        released: watch::Receiver<bool>,
    },
}

/// Something that goes wrong with calls to an endpoint; with the next one unless [`Fault::times`] says otherwise.
#[derive(Clone, Debug)]
pub struct Fault {
    pub(crate) endpoint: String,
    pub(crate) when: When,
    pub(crate) what: What,
    pub(crate) left: usize,
}

impl Fault {
    fn new(endpoint: &str, when: When, what: What) -> Self {
        Self {
            endpoint: endpoint.to_owned(),
            when,
            what,
            left: 1,
        }
    }

    /// An HTTP status instead of an answer: 429, 502, 503 (maintenance), 509; nothing is done. The endpoint `*` stands for all.
    #[must_use]
    pub fn answer(endpoint: &str, code: u16) -> Self {
        let message = format!("injected {code}");
        Self::new(endpoint, When::Before, What::Answer { code, message })
    }

    /// The connection ends before anything is done.
    #[must_use]
    pub fn drop_before(endpoint: &str) -> Self {
        Self::new(endpoint, When::Before, What::Drop)
    }

    /// The connection ends when all is done: the caller cannot know it.
    #[must_use]
    pub fn drop_after(endpoint: &str) -> Self {
        Self::new(endpoint, When::After, What::Drop)
    }

    /// The answer comes later.
    #[must_use]
    pub fn slow(endpoint: &str, by: Duration) -> Self {
        Self::new(endpoint, When::After, What::Wait(by))
    }

    /// How many calls it happens to.
    #[must_use]
    pub fn times(self, times: usize) -> Self {
        Self {
            left: times,
            ..self
        }
    }

    pub(crate) fn hold(endpoint: &str, when: When) -> (Self, Hold) {
        let (reached, watched) = watch::channel(false);
        let (release, released) = watch::channel(false);
        let fault = Self::new(endpoint, when, What::Hold { reached, released });
        (
            fault,
            Hold {
                reached: watched,
                release,
            },
        )
    }
}

/// A call that waits. It goes on when this is released or dropped.
#[derive(Debug)]
pub struct Hold {
    reached: watch::Receiver<bool>,
    release: watch::Sender<bool>,
}

impl Hold {
    /// Whether the call has come.
    #[must_use]
    pub fn is_reached(&self) -> bool {
        *self.reached.borrow()
    }

    /// Lets it go on.
    pub fn release(self) {
        self.release.send_replace(true);
    }
}

/// The next fault of a call, one fewer of it left.
pub(crate) fn due(faults: &mut Vec<Fault>, endpoint: &str, when: When) -> Option<What> {
    let matches = |fault: &Fault| {
        fault.when == when
            && fault.left > 0
            && (fault.endpoint == "*" || fault.endpoint == endpoint)
    };
    let fault = faults.iter_mut().find(|fault| matches(fault))?;
    fault.left -= 1;
    let what = fault.what.clone();
    faults.retain(|fault| fault.left > 0);
    Some(what)
}
