//! The streaming list writer: serialises lists of jobs piece by piece, because the text of ten thousand jobs is much
//! larger than the controller's state.
//!
//! A list that fits into one piece is an answer like any other.

use crate::controller::query::folds::ListItem;
use crate::controller::query::job_summary::{JobSummary, TextCache};
use std::sync::Arc;
use std::vec;

use axum::Extension;
use axum::body::{Body as HttpBody, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use divvy_api::v1::brief::Lines;
use divvy_api::v1::{Brief, Error, JobsChanged, List};
use http_body_util::channel::{Channel, Sender};

use super::body::ApiError;
use super::redact::{AlreadyRedacted, Visibility};
use super::{Api, Budget, internal};
use crate::controller::request::ActOutcome;

/// So many bytes are written at once, and what is left of the last job in them.
const PIECE: usize = 256 << 10;

/// The answer that has these jobs whole.
///
/// # Errors
/// When a job cannot be written.
pub async fn job_list_response<T: Into<ListItem> + Send + 'static>(
    api: &Api,
    sight: Visibility,
    jobs: Vec<T>,
) -> Result<Response, ApiError> {
    answer(api, Form::List, jobs, whole_job(api, sight)).await
}

/// The answer of an action on the jobs of a selection: the changed jobs whole, and why others were refused.
///
/// # Errors
/// When a job cannot be written.
pub async fn jobs_changed_response(
    api: &Api,
    sight: Visibility,
    changed: ActOutcome<JobSummary>,
) -> Result<Response, ApiError> {
    let form = Form::Changed(changed.refused);
    answer(api, form, changed.done, whole_job(api, sight)).await
}

fn whole_job<T: Into<ListItem>>(
    api: &Api,
    sight: Visibility,
) -> impl FnMut(T, &mut Vec<u8>) -> serde_json::Result<()> + Send + use<T> {
    let home = Arc::clone(&api.home);
    move |item, text| {
        let item = item.into();
        let mut job = item.job.into_view().into_api(&home);
        job.folded = item.folded;
        sight.redact(&mut job);
        serde_json::to_writer(text, &job)
    }
}

/// The answer that has a line with the columns of a table for each of these jobs.
///
/// # Errors
/// When a job cannot be written.
pub async fn brief_list_response(
    api: &Api,
    sight: Visibility,
    jobs: Vec<ListItem>,
) -> Result<Response, ApiError> {
    let mut said = TextCache::default();
    let write = move |item: ListItem, text: &mut Vec<u8>| {
        let sees = sight.can_see(item.job.owner());
        let brief = Brief {
            folded: item.folded,
            ..item.job.to_brief(sees, &mut said)
        };
        serde_json::to_writer(&mut *text, &brief)?;
        text.push(b'\n');
        Ok(())
    };
    answer(api, Form::Lines, jobs, write).await
}

/// How jobs follow each other.
#[derive(Clone, Debug)]
enum Form {
    /// [`List`].
    List,
    /// [`List`] of one [`JobsChanged`], which has these errors.
    Changed(Vec<Error>),
    /// Each ends its own line.
    Lines,
}

impl Form {
    fn content_type(&self) -> &'static str {
        match self {
            Self::List | Self::Changed(_) => "application/json",
            Self::Lines => Lines::CONTENT_TYPE,
        }
    }

    /// What stands between two jobs.
    fn separator(&self) -> &'static [u8] {
        match self {
            Self::List | Self::Changed(_) => b",",
            Self::Lines => b"",
        }
    }

    /// What comes before the first job and after the last.
    fn ends(&self) -> serde_json::Result<(Vec<u8>, Vec<u8>)> {
        let (empty, list) = match self {
            Self::Lines => return Ok((Vec::new(), Vec::new())),
            Self::List => {
                let empty = serde_json::to_string(&List::<()>::new("JobList", Vec::new()))?;
                (empty, "\"items\":[")
            }
            Self::Changed(refused) => {
                let changed = JobsChanged {
                    jobs: Vec::new(),
                    refused: refused.clone(),
                };
                let empty = serde_json::to_string(&List::new("JobsChange", vec![changed]))?;
                (empty, "\"jobs\":[")
            }
        };
        // The first field of this name is that of the list: no text of a job or an error comes before it.
        let place = empty.find(list).map_or(empty.len(), |at| at + list.len());
        let (begin, end) = empty.split_at(place);
        Ok((begin.into(), end.into()))
    }
}

/// What is still to be written.
struct ListWriter<T, W> {
    form: Form,
    jobs: vec::IntoIter<T>,
    write: W,
    is_begun: bool,
}

impl<T, W: FnMut(T, &mut Vec<u8>) -> serde_json::Result<()>> ListWriter<T, W> {
    fn is_done(&self) -> bool {
        self.is_begun && self.jobs.len() == 0
    }

    /// The next piece.
    fn piece(&mut self) -> serde_json::Result<Vec<u8>> {
        let (begin, end) = self.form.ends()?;
        let mut text = Vec::new();
        let mut separator = match self.is_begun {
            true => self.form.separator(),
            false => b"",
        };
        if !std::mem::replace(&mut self.is_begun, true) {
            text.extend(begin);
        }
        while text.len() < PIECE
            && let Some(job) = self.jobs.next()
        {
            text.extend(std::mem::replace(&mut separator, self.form.separator()));
            (self.write)(job, &mut text)?;
        }
        if self.is_done() {
            text.extend(end);
        }
        Ok(text)
    }
}

/// Writes the jobs, the first piece before it answers: most lists are no longer.
async fn answer<T, W>(api: &Api, form: Form, jobs: Vec<T>, write: W) -> Result<Response, ApiError>
where
    T: Send + 'static,
    W: FnMut(T, &mut Vec<u8>) -> serde_json::Result<()> + Send + 'static,
{
    let said = [(CONTENT_TYPE, form.content_type())];
    let scribe = ListWriter {
        form,
        jobs: jobs.into_iter(),
        write,
        is_begun: false,
    };
    let budget = api.budget.clone();
    let (scribe, first) = next(&budget, scribe).await?;
    let first = Bytes::from(first.map_err(|error| internal(&error))?);
    let body = if scribe.is_done() {
        HttpBody::from(first)
    } else {
        let (mut sender, body) = Channel::<Bytes, String>::new(1);
        tokio::spawn(async move {
            // The client has hung up.
            if sender.send_data(first).await.is_ok() {
                go_on(&budget, scribe, sender).await;
            }
        });
        HttpBody::new(body)
    };
    Ok((said, Extension(AlreadyRedacted), body).into_response())
}

async fn go_on<T, W>(
    budget: &Budget,
    mut scribe: ListWriter<T, W>,
    mut sender: Sender<Bytes, String>,
) where
    T: Send + 'static,
    W: FnMut(T, &mut Vec<u8>) -> serde_json::Result<()> + Send + 'static,
{
    while !scribe.is_done() {
        // A list that ends in the middle must not appear whole.
        let piece = match next(budget, scribe).await {
            Ok((after, Ok(piece))) => {
                scribe = after;
                piece
            }
            Ok((_, Err(error))) => return sender.abort(error.to_string()),
            Err(_) => return sender.abort("cannot write the list".to_owned()),
        };
        if sender.send_data(piece.into()).await.is_err() {
            return;
        }
    }
}

type Piece<T, W> = (ListWriter<T, W>, serde_json::Result<Vec<u8>>);

async fn next<T, W>(budget: &Budget, mut scribe: ListWriter<T, W>) -> Result<Piece<T, W>, ApiError>
where
    T: Send + 'static,
    W: FnMut(T, &mut Vec<u8>) -> serde_json::Result<()> + Send + 'static,
{
    let write = move || {
        let piece = scribe.piece();
        (scribe, piece)
    };
    budget.run(write).await
}

#[cfg(test)]
mod tests {
    use divvy_api::v1::ErrorCode;

    use super::*;

    /// The pieces of a list of texts.
    fn pieces(form: Form, jobs: Vec<String>) -> Vec<Vec<u8>> {
        let end = match form {
            Form::Lines => Some(b'\n'),
            Form::List | Form::Changed(_) => None,
        };
        let mut scribe = ListWriter {
            form,
            jobs: jobs.into_iter(),
            write: |job: String, text: &mut Vec<u8>| {
                serde_json::to_writer(&mut *text, &job)?;
                text.extend(end);
                Ok(())
            },
            is_begun: false,
        };
        let mut pieces = Vec::new();
        while !scribe.is_done() {
            pieces.push(scribe.piece().unwrap());
        }
        pieces
    }

    #[test]
    fn a_list_is_the_same_in_one_piece_and_in_many() {
        let long = "x".repeat(PIECE / 3);
        for count in [0, 1, 2, 3, 7] {
            let jobs: Vec<String> = (0..count).map(|at| format!("{at}{long}")).collect();
            let list = pieces(Form::List, jobs.clone());
            assert_eq!(list.len(), usize::max(1, jobs.len().div_ceil(3)), "{count}");
            let whole = serde_json::to_vec(&List::new("JobList", jobs.clone())).unwrap();
            assert!(list.concat() == whole, "{count}");
            let refused = vec![Error::new(ErrorCode::Conflict, "\"jobs\":[ of job 3")];
            let changed = pieces(Form::Changed(refused), jobs.clone()).concat();
            let changed: serde_json::Value = serde_json::from_slice(&changed).unwrap();
            assert_eq!(changed["kind"], "JobsChange");
            assert_eq!(changed["items"][0]["jobs"], serde_json::json!(jobs));
            assert_eq!(changed["items"][0]["refused"][0]["code"], "conflict");
            let lines = pieces(Form::Lines, jobs.clone()).concat();
            let read = serde_json::Deserializer::from_slice(&lines).into_iter::<String>();
            assert_eq!(read.collect::<Result<Vec<_>, _>>().unwrap(), jobs);
        }
    }

    #[test]
    fn no_piece_is_much_longer_than_another_however_long_the_list() {
        let jobs = vec!["a job".to_owned(); PIECE / 2];
        for form in [Form::List, Form::Lines] {
            let all = pieces(form, jobs.clone());
            assert!(all.len() > 3);
            assert!(all.iter().all(|piece| piece.len() < PIECE + 64));
        }
    }
}
