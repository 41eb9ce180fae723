//! The rows of the lists: which jobs they hold, and in which order.

use std::cmp::Ordering;
use std::cmp::Reverse;

use divvy_api::v1::{BoardJob, BoardSlice, BoardWaitingJob};

use super::state::{PAGE, Section, State};
use crate::text;

/// The order of the running jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sort {
    pub by: Key,
    /// The other way round.
    pub is_reversed: bool,
}

/// A column by which jobs are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Key {
    /// Order of the daemon: by number.
    #[default]
    Number,
    User,
    Name,
    Gpu,
    Memory,
    Peak,
    Compute,
    Time,
    Queue,
    Project,
    Refusals,
}

impl Key {
    /// Columns with their letters after `o`. Letters of nvitop keep their meaning.
    pub const ALL: [(char, Self, &'static str); 11] = [
        ('n', Self::Number, "number"),
        ('u', Self::User, "user"),
        ('g', Self::Memory, "GPU memory"),
        ('s', Self::Compute, "GPU time"),
        ('t', Self::Time, "time"),
        ('p', Self::Peak, "peak"),
        ('i', Self::Gpu, "GPU index"),
        ('a', Self::Name, "name"),
        ('q', Self::Queue, "queue"),
        ('j', Self::Project, "project"),
        ('d', Self::Refusals, "refusals"),
    ];

    pub fn name(self) -> &'static str {
        let found = Self::ALL.iter().find(|(_, key, _)| *key == self);
        found.map_or("", |(_, _, name)| name)
    }

    /// The order of a letter; a capital reverses it.
    pub fn sort(letter: char) -> Option<Sort> {
        let lower = letter.to_ascii_lowercase();
        let found = Self::ALL.iter().find(|(known, ..)| *known == lower);
        found.map(|(_, by, _)| Sort {
            by: *by,
            is_reversed: letter.is_ascii_uppercase(),
        })
    }
}

/// Sum of a figure over the slices of a job.
pub fn sum(job: &BoardJob, figure: impl Fn(&BoardSlice) -> u64) -> u64 {
    job.slices.iter().map(figure).fold(0, u64::saturating_add)
}

/// The slices of a job by their labels: `gpu2,3`.
pub fn labels(job: &BoardJob) -> String {
    text::labels(job.slices.iter().map(|slice| slice.label.as_str()))
}

/// GPU time that the job used, in thousandths, if it is measured.
pub fn share_used(job: &BoardJob) -> Option<u64> {
    let used = job.slices.iter().filter_map(|slice| slice.share_used);
    used.map(u64::from).reduce(u64::saturating_add)
}

fn number(job: &BoardJob) -> u64 {
    job.id.parse().unwrap_or(u64::MAX)
}

fn compare(by: Key, one: &BoardJob, other: &BoardJob) -> Ordering {
    let order = match by {
        Key::Number => Ordering::Equal,
        Key::User => one.user.cmp(&other.user),
        Key::Name => one.name.cmp(&other.name),
        Key::Gpu => first_gpu(one).cmp(&first_gpu(other)),
        // The largest first, as in nvitop.
        Key::Memory => Reverse(sum(one, |slice| slice.used_bytes))
            .cmp(&Reverse(sum(other, |slice| slice.used_bytes))),
        Key::Peak => {
            Reverse(sum(one, |slice| slice.peak())).cmp(&Reverse(sum(other, |slice| slice.peak())))
        }
        Key::Compute => Reverse(share_used(one)).cmp(&Reverse(share_used(other))),
        Key::Time => one.since.cmp(&other.since),
        Key::Queue => one.queue.cmp(&other.queue),
        Key::Project => one.project.cmp(&other.project),
        Key::Refusals => Reverse(one.denials).cmp(&Reverse(other.denials)),
    };
    order.then_with(|| number(one).cmp(&number(other)))
}

fn first_gpu(job: &BoardJob) -> u32 {
    job.slices.first().map_or(u32::MAX, |slice| slice.gpu)
}

/// A row of the running jobs.
#[derive(Clone, Copy, Debug)]
pub struct JobRow<'a> {
    pub job: &'a BoardJob,
    /// In the tree, the slice on the GPU of the branch.
    pub slice: Option<&'a BoardSlice>,
    /// In the tree, the last row of its GPU.
    pub is_last: bool,
}

impl State {
    /// Running jobs that match the filter, sorted.
    pub fn job_rows(&self) -> Vec<JobRow<'_>> {
        let Some(board) = &self.board else {
            return Vec::new();
        };
        let filter = self.filter();
        let mut jobs: Vec<&BoardJob> = board
            .jobs
            .iter()
            .filter(|job| filter.matches_job(job))
            .collect();
        let Sort { by, is_reversed } = self.sort;
        jobs.sort_by(|one, other| {
            if is_reversed {
                compare(by, other, one)
            } else {
                compare(by, one, other)
            }
        });
        if !self.is_tree {
            let row = |job| JobRow {
                job,
                slice: None,
                is_last: false,
            };
            return jobs.into_iter().map(row).collect();
        }
        let mut rows = Vec::new();
        for gpu in &board.gpus {
            let slices = jobs.iter().flat_map(|job| {
                let mine = job.slices.iter().filter(|slice| slice.gpu == gpu.index);
                mine.map(|slice| JobRow {
                    job,
                    slice: Some(slice),
                    is_last: false,
                })
            });
            rows.extend(slices);
            if let Some(last) = rows.last_mut() {
                last.is_last = true;
            }
        }
        rows
    }

    /// Row of the picked job: the nearest one if the job has gone.
    pub fn job_row(&self, rows: &[JobRow<'_>]) -> usize {
        let picked = self.picked_job.as_deref();
        let is_picked = |row: &JobRow<'_>| Some(row.job.reference()) == picked;
        let at_cursor = rows.get(self.job_row).is_some_and(is_picked);
        let found = if at_cursor {
            Some(self.job_row)
        } else {
            rows.iter().position(is_picked)
        };
        found.unwrap_or_else(|| self.job_row.min(rows.len().saturating_sub(1)))
    }

    /// The first rows of the pending jobs, from the board. `None` where it folds arrays that the user wants unfolded.
    fn first_waiting(&self) -> Option<&[BoardWaitingJob]> {
        let first = &self.board.as_ref()?.waiting.first;
        let has_folded = first.iter().any(|job| job.folded.is_some());
        (!(self.is_unfolded && has_folded)).then_some(first)
    }

    /// Rows of pending jobs that match the filter, as far as their number is known.
    pub fn waiting_count(&self) -> usize {
        let Some(board) = &self.board else { return 0 };
        let filter = self.filter();
        let items = self.waiting.items;
        let rows = match self.first_waiting() {
            Some(first) if self.has_all_waiting() && !filter.needs_daemon() => {
                let found = first.iter().filter(|job| filter.matches_waiting(job));
                return found.count();
            }
            _ if !filter.is_empty() => items.unwrap_or(0),
            first => {
                let first = first.unwrap_or_default();
                let known: u64 = first.iter().map(BoardWaitingJob::count).sum();
                // Each job beyond the board has a row of its own, until a page says how many are folded.
                let most = first.len() as u64 + board.waiting.count.saturating_sub(known);
                items.unwrap_or(most).min(most)
            }
        };
        usize::try_from(rows).unwrap_or(usize::MAX)
    }

    /// Pending jobs that match the filter: more than rows where arrays are folded.
    pub fn waiting_jobs(&self) -> u64 {
        let filter = self.filter();
        match self.first_waiting() {
            Some(first) if self.has_all_waiting() && !filter.needs_daemon() => {
                let found = first.iter().filter(|job| filter.matches_waiting(job));
                found.map(BoardWaitingJob::count).sum()
            }
            _ => self.waiting.total.unwrap_or(0),
        }
    }

    /// Whether the board holds every pending job.
    pub fn has_all_waiting(&self) -> bool {
        let (Some(board), Some(first)) = (&self.board, self.first_waiting()) else {
            return false;
        };
        let known: u64 = first.iter().map(BoardWaitingJob::count).sum();
        known >= board.waiting.count
    }

    /// The pending job in a row: from the board where it has it, else from a page.
    pub fn waiting_at(&self, row: usize) -> Option<&BoardWaitingJob> {
        let filter = self.filter();
        if let Some(first) = self.first_waiting() {
            if filter.is_empty() {
                if let Some(job) = first.get(row) {
                    return Some(job);
                }
            } else if self.has_all_waiting() && !filter.needs_daemon() {
                let mut found = first.iter().filter(|job| filter.matches_waiting(job));
                return found.nth(row);
            }
        }
        self.waiting.pages.get(&(row / PAGE))?.get(row % PAGE)
    }

    /// The job that a key is about: the page's job, else the picked one of the list.
    pub fn picked(&self) -> Option<Picked> {
        if let Some(page) = self.page.as_ref().filter(|page| page.is_open) {
            let owner = self.job(&page.job).map(|job| job.user.clone());
            let facts = page.facts.as_ref();
            return Some(Picked {
                owner: owner.or_else(|| Some(facts?.user.clone())),
                job: page.job.clone(),
            });
        }
        self.picked_in_list()
    }

    /// The picked job of the list that the user is in.
    pub fn picked_in_list(&self) -> Option<Picked> {
        if self.pane == super::state::Pane::Waiting {
            let job = self.waiting_at(self.waiting_row)?;
            return Some(Picked {
                job: job.reference().to_owned(),
                owner: Some(job.user.clone()),
            });
        }
        let rows = self.job_rows();
        let job = rows.get(self.job_row(&rows))?.job;
        Some(Picked {
            job: job.reference().to_owned(),
            owner: Some(job.user.clone()),
        })
    }
}

/// A job that a key is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picked {
    pub job: String,
    pub owner: Option<String>,
}

impl Section {
    /// The section that a job's page opens with.
    pub fn first(is_waiting: bool) -> Self {
        if is_waiting { Self::Why } else { Self::Log }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::super::update::tests::{keys, viewed};
    use super::*;

    fn order(state: &State) -> Vec<String> {
        let rows = state.job_rows();
        rows.iter().map(|row| row.job.id.clone()).collect()
    }

    #[test]
    fn jobs_are_sorted_by_each_column() {
        for (typed, expected) in [
            ("on", ["7", "12", "14", "21", "22", "23"]),
            ("oN", ["23", "22", "21", "14", "12", "7"]),
            ("og", ["14", "7", "23", "12", "22", "21"]),
            ("ou", ["7", "21", "14", "22", "23", "12"]),
            ("od", ["7", "12", "14", "21", "22", "23"]),
            ("ot", ["14", "23", "7", "12", "22", "21"]),
            ("oi", ["7", "12", "21", "14", "22", "23"]),
        ] {
            let mut state = viewed(sample::board());
            keys(&mut state, typed);
            assert_eq!(order(&state), expected, "{typed}");
        }
    }

    #[test]
    fn the_tree_lists_the_slices_of_each_gpu() {
        let mut state = viewed(sample::board());
        keys(&mut state, "t");
        let rows = state.job_rows();
        let shown = rows.iter().map(|row| {
            let slice = row.slice.unwrap();
            (slice.gpu, row.job.id.as_str(), row.is_last)
        });
        assert_eq!(
            shown.collect::<Vec<_>>(),
            [
                (0, "7", false),
                (0, "12", false),
                (0, "21", true),
                (1, "14", true),
                (2, "22", false),
                (2, "23", true)
            ]
        );
    }

    #[test]
    fn every_sort_letter_is_used_once_and_leaves_o_to_the_report() {
        let mut letters: Vec<char> = Key::ALL.iter().map(|(letter, ..)| *letter).collect();
        letters.sort_unstable();
        letters.dedup();
        assert_eq!(letters.len(), Key::ALL.len());
        assert!(!letters.contains(&'o'));
    }
}
