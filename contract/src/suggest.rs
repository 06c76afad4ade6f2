//! Suggests the known word that a person may have meant.

/// The known word that is nearest to `word`, if it is near enough to be meant: one edit, and one more for each five characters. Upper and
/// lower case are the same.
#[must_use]
pub fn closest_word<'w>(word: &str, known: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    let length = word.chars().count();
    let most = (1 + length / 5).min(length.saturating_sub(1));
    let lower = word.to_lowercase();
    known
        .into_iter()
        .map(|known| (strsim::osa_distance(&lower, &known.to_lowercase()), known))
        .filter(|(distance, _)| *distance <= most)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// [`closest_word`] as the end of a sentence; empty if no word is near.
#[must_use]
pub fn did_you_mean<'w>(word: &str, known: impl IntoIterator<Item = &'w str>) -> String {
    closest_word(word, known).map_or_else(String::new, |known| format!("; did you mean {known}?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_is_suggested_only_when_near() {
        let known = ["relateResources", "selector", "limits", "Normal"];
        for (word, expected) in [
            ("relatedResources", Some("relateResources")),
            ("limit", Some("limits")),
            ("slector", Some("selector")),
            ("normal", Some("Normal")),
            ("objectSelector", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(closest_word(word, known), expected, "{word}");
        }
        assert_eq!(did_you_mean("limit", known), "; did you mean limits?");
        assert_eq!(did_you_mean("root", known), "");
    }
}
