//! The sampling interval of the observer: random, so that no program can take memory between two samples unseen.
//!
//! The gaps have an exponential distribution, which forgets the past. A program that learns of each look once it is
//! over still knows nothing of the next one.

use std::time::Duration;

/// The mean gap while there are jobs. A look costs milliseconds of one core, so half of it would double a cost that is
/// paid all the time; twice as much would double the time that an excess lasts unseen.
pub const MEAN_GAP: Duration = Duration::from_millis(250);

/// The longest gap, so that memory held without a pause is reported within a second. One gap in 37 is as long
/// (e^-3.6): too rare for a program to rely on.
pub const LONGEST_GAP: Duration = Duration::from_millis(900);

/// The gap before the next look, from a uniformly distributed number.
pub fn random_gap(random: u64) -> Duration {
    // The 53 bits of a float's mantissa, from just above 0 to 1.
    let uniform = ((random >> 11) + 1) as f64 / (1_u64 << 53) as f64;
    MEAN_GAP.mul_f64(-uniform.ln()).min(LONGEST_GAP)
}
