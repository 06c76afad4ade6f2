//! The grammar of label selectors, token by token as `labels.Parser` goes. It borrows from the text and hands each
//! requirement to a sink, so that checking a selector needs no allocation.

use super::{MAX_REQUIREMENTS, MAX_SELECTOR_BYTES, Operator, SelectorError, validation};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    End,
    Open,
    Close,
    Comma,
    Not,
    /// An operator between key and value that is no word.
    Symbol(Operator),
    /// A key, a value, or one of the words `in` and `notin`, which only the place tells apart.
    Word(&'a str),
}

struct Parser<'a> {
    text: &'a str,
    position: usize,
    next: Token<'a>,
}

/// Parses a selector and calls the sink for each requirement, in the order of the text.
pub(super) fn parse<'a>(
    text: &'a str,
    mut sink: impl FnMut(&'a str, Operator, &[&'a str]),
) -> Result<(), SelectorError> {
    if text.len() > MAX_SELECTOR_BYTES {
        return Err(SelectorError::TooLong(text.len()));
    }
    let mut parser = Parser {
        text,
        position: 0,
        next: Token::End,
    };
    parser.next = parser.next_token();
    for _ in 0..MAX_REQUIREMENTS {
        match parser.next {
            Token::End => return Ok(()),
            Token::Word(_) | Token::Not => parser.parse_requirement(&mut sink)?,
            _ => return Err(parser.unexpected_token("`!`, a key or the end")),
        }
        match parser.next {
            Token::End => return Ok(()),
            Token::Comma => parser.advance(),
            _ => return Err(parser.unexpected_token("`,` or the end")),
        };
        if !matches!(parser.next, Token::Word(_) | Token::Not) {
            return Err(parser.unexpected_token("a key after `,`"));
        }
    }
    Err(SelectorError::TooManyRequirements)
}

impl<'a> Parser<'a> {
    fn parse_requirement(&mut self, sink: &mut impl FnMut(&'a str, Operator, &[&'a str])) -> Result<(), SelectorError> {
        let is_negated = self.next == Token::Not;
        if is_negated {
            self.advance();
        }
        let Token::Word(key) = self.next else {
            return Err(self.unexpected_token("a key"));
        };
        self.advance();
        let single = |operator, values: &[&'a str], sink: &mut dyn FnMut(&'a str, Operator, &[&'a str])| {
            validation::check(key, operator, values.iter().copied())?;
            sink(key, operator, values);
            Ok(())
        };
        if is_negated {
            return single(Operator::DoesNotExist, &[], sink);
        }
        match self.next {
            Token::End | Token::Comma => single(Operator::Exists, &[], sink),
            Token::Word("in") => single(Operator::In, &self.value_list()?, sink),
            Token::Word("notin") => single(Operator::NotIn, &self.value_list()?, sink),
            Token::Symbol(operator) => single(operator, &[self.value()?], sink),
            _ => Err(self.unexpected_token("=, ==, !=, in, notin, > or <")),
        }
    }

    /// The value behind a symbol; an absent one is the empty value.
    fn value(&mut self) -> Result<&'a str, SelectorError> {
        self.advance();
        match self.next {
            Token::End | Token::Comma => Ok(""),
            Token::Word(value) => {
                self.advance();
                Ok(value)
            }
            _ => Err(self.unexpected_token("a value")),
        }
    }

    /// `(a,b)`. Empty values are legal: `()`, `(,a)`, `(a,,b)`.
    fn value_list(&mut self) -> Result<Vec<&'a str>, SelectorError> {
        self.advance();
        if self.next != Token::Open {
            return Err(self.unexpected_token("`(`"));
        }
        let mut values = Vec::new();
        loop {
            // Behind the opening parenthesis or a comma.
            self.advance();
            match self.next {
                Token::Word(value) => {
                    values.push(value);
                    self.advance();
                }
                Token::Comma | Token::Close => values.push(""),
                _ => return Err(self.unexpected_token("`,`, `)` or a value")),
            }
            match self.next {
                Token::Comma => {}
                Token::Close => break,
                _ => return Err(self.unexpected_token("`,` or `)`")),
            }
        }
        self.advance();
        Ok(values)
    }

    fn advance(&mut self) {
        self.next = self.next_token();
    }

    fn unexpected_token(&self, expected: &'static str) -> SelectorError {
        let found = match self.next {
            Token::End => "",
            Token::Open => "(",
            Token::Close => ")",
            Token::Comma => ",",
            Token::Not => "!",
            Token::Word(word) => word,
            Token::Symbol(_) => self.text.get(..self.position).unwrap_or(""),
        };
        SelectorError::Syntax {
            found: found.to_owned(),
            expected,
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.position).copied()
    }

    /// The next token. A NUL byte ends a word or a symbol like a space, and where a token would begin it ends the whole
    /// selector: upstream's lexer reads 0 as the end.
    fn next_token(&mut self) -> Token<'a> {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.position += 1;
        }
        let token = match self.peek() {
            None | Some(0) => {
                self.position = self.text.len();
                return Token::End;
            }
            Some(first) if is_special(first) => self.read_symbol(first),
            Some(_) => self.read_word(),
        };
        if self.peek() == Some(0) {
            self.position += 1;
        }
        token
    }

    fn read_symbol(&mut self, first: u8) -> Token<'a> {
        self.position += 1;
        let is_pair = matches!(first, b'=' | b'!') && self.peek() == Some(b'=');
        if is_pair {
            self.position += 1;
        }
        match (first, is_pair) {
            (b'=', true) => Token::Symbol(Operator::DoubleEquals),
            (b'=', false) => Token::Symbol(Operator::Equals),
            (b'!', true) => Token::Symbol(Operator::NotEquals),
            (b'!', false) => Token::Not,
            (b'(', _) => Token::Open,
            (b')', _) => Token::Close,
            (b'>', _) => Token::Symbol(Operator::GreaterThan),
            (b'<', _) => Token::Symbol(Operator::LessThan),
            _ => Token::Comma,
        }
    }

    fn read_word(&mut self) -> Token<'a> {
        let rest = self.text.get(self.position..).unwrap_or("");
        let end = rest.bytes().position(ends_word).unwrap_or(rest.len());
        self.position += end;
        Token::Word(rest.get(..end).unwrap_or(""))
    }
}

fn is_special(byte: u8) -> bool {
    matches!(byte, b'=' | b'!' | b'(' | b')' | b',' | b'>' | b'<')
}

fn ends_word(byte: u8) -> bool {
    is_special(byte) || matches!(byte, 0 | b' ' | b'\t' | b'\r' | b'\n')
}
