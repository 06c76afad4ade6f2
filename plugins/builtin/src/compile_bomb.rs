//! A small component that takes hundreds of megabytes to compile: thousands of local variables, each written after tens of thousands of
//! branches. The compiler records for each variable and branch where it was written.

/// With these numbers, Cranelift takes some 520 MiB.
const VARIABLES: u32 = 3_000;
const BRANCHES: usize = 20_000;

const GET_ARGUMENT: [u8; 2] = [0x20, 0];
const LOCAL_SET: u8 = 0x21;
const IF_AND_END: [u8; 3] = [0x04, 0x40, 0x0b];
const END: u8 = 0x0b;
const I32: u8 = 0x7f;

/// Builds one core module and an instance of it. It is no plugin, but a host can detect that only after compiling it.
pub(super) fn build_component() -> Vec<u8> {
    let mut component = b"\0asm\x0d\0\x01\0".to_vec();
    push_section(&mut component, 1, &core_module());
    // One instance of module 0, without arguments.
    push_section(&mut component, 2, &[1, 0, 0, 0]);
    component
}

fn core_module() -> Vec<u8> {
    let mut module = b"\0asm\x01\0\0\0".to_vec();
    // One function from i32 to i32.
    push_section(&mut module, 1, &[1, 0x60, 1, I32, 1, I32]);
    push_section(&mut module, 3, &[1, 0]);
    let body = function_body();
    let mut code = vec![1];
    push_leb128(&mut code, body.len());
    code.extend(body);
    push_section(&mut module, 10, &code);
    module
}

fn function_body() -> Vec<u8> {
    // One run of local variables.
    let mut body = vec![1];
    push_leb128(&mut body, VARIABLES as usize);
    body.push(I32);
    for _ in 0..BRANCHES {
        body.extend(GET_ARGUMENT);
        body.extend(IF_AND_END);
    }
    for variable in 1..=VARIABLES {
        body.extend(GET_ARGUMENT);
        body.push(LOCAL_SET);
        push_leb128(&mut body, variable as usize);
    }
    body.extend(GET_ARGUMENT);
    body.push(END);
    body
}

fn push_section(to: &mut Vec<u8>, id: u8, content: &[u8]) {
    to.push(id);
    push_leb128(to, content.len());
    to.extend(content);
}

fn push_leb128(to: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        to.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    to.push(number.to_le_bytes()[0]);
}
