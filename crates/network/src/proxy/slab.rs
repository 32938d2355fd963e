//! Connections by number. A number is never mistaken for an earlier connection in the same place, so that news of one
//! that has ended since, read in the same turn, reaches nobody.

/// A place and which of its tenants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token {
    place: u32,
    tenant: u32,
}

const TENANTS: u32 = u32::MAX >> 2;

impl Token {
    /// In 62 bits.
    pub fn number(self) -> u64 {
        u64::from(self.tenant) << 32 | u64::from(self.place)
    }

    pub fn from_number(number: u64) -> Self {
        Self { place: number as u32, tenant: (number >> 32) as u32 & TENANTS }
    }
}

pub struct Slab<T> {
    places: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub fn insert(&mut self, value: T) -> Token {
        if let Some(place) = self.free.pop() {
            let (tenant, content) = &mut self.places[place as usize];
            *tenant = (*tenant + 1) & TENANTS;
            *content = Some(value);
            return Token { place, tenant: *tenant };
        }
        self.places.push((0, Some(value)));
        Token { place: self.places.len() as u32 - 1, tenant: 0 }
    }

    pub fn get(&mut self, token: Token) -> Option<&mut T> {
        let (tenant, content) = self.places.get_mut(token.place as usize)?;
        content.as_mut().filter(|_| *tenant == token.tenant)
    }

    pub fn remove(&mut self, token: Token) -> Option<T> {
        let (tenant, content) = self.places.get_mut(token.place as usize)?;
        let value = content.take_if(|_| *tenant == token.tenant)?;
        self.free.push(token.place);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_outlives_its_connection_without_meaning_another() {
        let mut slab = Slab::default();
        let first = slab.insert("first");
        assert_eq!(slab.remove(first), Some("first"));
        let second = slab.insert("second");
        assert_eq!(slab.get(first), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get(Token::from_number(second.number())), Some(&mut "second"));
        assert_eq!(slab.len(), 1);
    }
}
