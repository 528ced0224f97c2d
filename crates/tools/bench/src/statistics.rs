//! Medians, spreads, geometric means.

/// The middle of `values`, of an even number the mean of the two in the middle.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[half]),
        _ => Some((sorted[half - 1] + sorted[half]) / 2.0),
    }
}

/// The distance of the largest from the smallest of `values`, in parts of the median.
pub fn spread(values: &[f64]) -> Option<f64> {
    let middle = median(values)?;
    let (low, high) = values.iter().fold((f64::MAX, f64::MIN), |(low, high), &v| (low.min(v), high.max(v)));
    Some(if middle > 0.0 { (high - low) / middle } else { 0.0 })
}

/// The geometric mean of `values`, which are ratios; none if there are none or one is not above zero.
pub fn geometric_mean(values: &[f64]) -> Option<f64> {
    if values.is_empty() || values.iter().any(|&v| v.is_nan() || v <= 0.0) {
        return None;
    }
    Some((values.iter().map(|v| v.ln()).sum::<f64>() / values.len() as f64).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[5.0, 1.0, 4.0]), Some(4.0));
        assert_eq!(median(&[5.0, 1.0, 4.0, 2.0]), Some(3.0));
    }

    #[test]
    fn spreads_are_relative_to_the_median() {
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[7.0]), Some(0.0));
        assert_eq!(spread(&[9.0, 10.0, 12.0]), Some(0.3));
        assert_eq!(spread(&[0.0, 0.0]), Some(0.0));
    }

    #[test]
    fn geometric_means() {
        let mean = geometric_mean(&[1.0, 100.0]).unwrap();
        assert!((mean - 10.0).abs() < 1e-9, "{mean}");
        assert_eq!(geometric_mean(&[]), None);
        assert_eq!(geometric_mean(&[1.0, 0.0]), None);
        assert_eq!(geometric_mean(&[1.0, f64::NAN]), None);
    }
}
