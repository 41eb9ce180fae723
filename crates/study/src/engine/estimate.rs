//! Statistical estimate: the mean over independent runs and its confidence interval.

/// A mean with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    pub mean: f64,
    /// Half the width of the interval; `None` from a single run, which says nothing of how far off it is.
    pub within: Option<f64>,
}

/// The 0.975 quantile of Student's t distribution for 1 to 30 degrees of freedom (any table of it has these).
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

/// The same of the normal distribution, for more. The 97.5th percentile, so that an interval holds 95 %.
const NORMAL: f64 = 1.960;

impl Estimate {
    /// From one value a run; `None` without any.
    pub fn of(values: &[f64]) -> Option<Self> {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let freedom = values.len().checked_sub(1)?;
        let within = freedom.checked_sub(1).map(|at| {
            let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
            let quantile = STUDENT.get(at).copied().unwrap_or(NORMAL);
            quantile * (squares / freedom as f64 / count).sqrt()
        });
        Some(Self { mean, within })
    }

    /// Of the differences run by run, which the same arrivals in each make far more certain than either figure.
    pub fn of_differences(values: &[f64], baseline: &[f64]) -> Option<Self> {
        let differences: Vec<f64> = values
            .iter()
            .zip(baseline)
            .map(|(value, baseline)| value - baseline)
            .collect();
        Self::of(&differences)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_students() {
        let estimate = Estimate::of(&[1.0, 2.0, 3.0, 4.0]).unwrap();
        // The standard deviation is sqrt(5/3), the standard error half of it.
        assert_eq!(estimate.mean, 2.5);
        let expected = 3.182 * (5.0_f64 / 3.0).sqrt() / 2.0;
        assert!((estimate.within.unwrap() - expected).abs() < 1e-12);
        let one = Estimate {
            mean: 7.0,
            within: None,
        };
        assert_eq!(Estimate::of(&[7.0]), Some(one));
        assert_eq!(Estimate::of(&[]), None);
    }

    #[test]
    fn runs_that_differ_by_the_same_differ_certainly() {
        let difference = Estimate::of_differences(&[1.5, 3.5, 2.5], &[1.0, 3.0, 2.0]).unwrap();
        assert_eq!((difference.mean, difference.within), (0.5, Some(0.0)));
    }
}
