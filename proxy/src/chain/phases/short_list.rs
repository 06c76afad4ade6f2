//! A list of what entries did to one request: mostly of one element, for which nothing is allocated.

#[derive(Debug)]
pub(super) struct ShortList<T> {
    first: Option<T>,
    others: Vec<T>,
}

impl<T> Default for ShortList<T> {
    fn default() -> Self {
        Self {
            first: None,
            others: Vec::new(),
        }
    }
}

impl<T> ShortList<T> {
    pub(super) fn push(&mut self, element: T) {
        if self.first.is_none() {
            self.first = Some(element);
        } else {
            self.others.push(element);
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &T> + Clone {
        self.first.iter().chain(&self.others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_kept_in_order_and_the_first_one_in_place() {
        let mut list = ShortList::default();
        assert!(list.is_empty());
        for number in 1..=3 {
            list.push(number);
            assert!(!list.is_empty());
            assert_eq!(list.others.capacity() > 0, number > 1);
        }
        assert!(list.iter().eq(&[1, 2, 3]) && list.iter().rev().eq(&[3, 2, 1]));
    }
}
