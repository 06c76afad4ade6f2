//! Plugins that are expensive to compile: a working plugin with one more core module in its component, which is compiled but never
//! instantiated.

/// Adds ordinary functions: each has some 500 bytes, and takes about 6 KiB and a fifth of a millisecond to compile to 1 KiB of machine
/// code. Plugins with other counts have other digests.
#[must_use]
pub fn with_functions(plugin: &[u8], count: u32) -> Vec<u8> {
    let bodies: Vec<Vec<u8>> = (0..count).map(|number| ordinary_function(number, count)).collect();
    with_module(plugin, &bodies)
}

/// Adds a compile bomb: one function of 200 KB that takes gigabytes to compile. Each of its 2,000 variables may come from any of tens of
/// thousands of branches.
#[must_use]
pub fn with_bomb(plugin: &[u8]) -> Vec<u8> {
    const LOCALS: u32 = 2000;
    let mut body = vec![1];
    push_leb128(&mut body, LOCALS);
    body.push(I32);
    for number in 0..20_000 {
        push_local(&mut body, LOCAL_GET, number % LOCALS);
        // if (no result)
        body.extend([0x04, 0x40]);
        push_local(&mut body, LOCAL_GET, number * 7 % LOCALS);
        push_local(&mut body, LOCAL_SET, (number * 3 + 1) % LOCALS);
        body.push(END);
    }
    push_local(&mut body, LOCAL_GET, 0);
    body.push(END);
    with_module(plugin, &[body])
}

const I32: u8 = 0x7f;
const LOCAL_GET: u8 = 0x20;
const LOCAL_SET: u8 = 0x21;
const END: u8 = 0x0b;

fn ordinary_function(number: u32, count: u32) -> Vec<u8> {
    // One group of 8 locals, besides the parameter.
    let mut body = vec![1, 8, I32];
    for step in 0..60 {
        push_local(&mut body, LOCAL_GET, (step * 7 + number) % 9);
        push_local(&mut body, LOCAL_GET, step * 3 % 9);
        // i32.add, i32.load with alignment 4
        body.extend([0x6a, 0x28, 0x02]);
        push_leb128(&mut body, step);
        if step % 8 == 7 {
            // call
            body.push(0x10);
            push_leb128(&mut body, (number * 13 + step) % count);
        }
        push_local(&mut body, LOCAL_SET, (step * 5 + 1) % 9);
    }
    push_local(&mut body, LOCAL_GET, 0);
    body.push(END);
    body
}

/// The component with a core module of functions `i32 -> i32` and one page of memory.
fn with_module(plugin: &[u8], bodies: &[Vec<u8>]) -> Vec<u8> {
    let mut module = b"\0asm\x01\0\0\0".to_vec();
    push_section(&mut module, 1, &encode_vector(&[&[0x60, 1, I32, 1, I32]]));
    push_section(&mut module, 3, &encode_vector(&vec![&[0_u8][..]; bodies.len()]));
    push_section(&mut module, 5, &[1, 0, 1]);
    let sized: Vec<Vec<u8>> = bodies.iter().map(|body| with_length(body)).collect();
    push_section(
        &mut module,
        10,
        &encode_vector(&sized.iter().map(Vec::as_slice).collect::<Vec<_>>()),
    );
    let mut component = plugin.to_vec();
    push_section(&mut component, 1, &module);
    component
}

fn push_section(out: &mut Vec<u8>, id: u8, content: &[u8]) {
    out.push(id);
    out.extend(with_length(content));
}

fn encode_vector(items: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    push_leb128(&mut out, u32::try_from(items.len()).expect("a small test"));
    for item in items {
        out.extend_from_slice(item);
    }
    out
}

fn with_length(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    push_leb128(&mut out, u32::try_from(bytes.len()).expect("a small test"));
    out.extend_from_slice(bytes);
    out
}

fn push_local(out: &mut Vec<u8>, instruction: u8, index: u32) {
    out.push(instruction);
    push_leb128(out, index);
}

fn push_leb128(out: &mut Vec<u8>, mut value: u32) {
    while value > 0x7f {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
