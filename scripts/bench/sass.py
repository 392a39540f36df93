"""What machine code of a kernel's inner loop asks of a multiprocessor, and the share of the roofline that this allows."""
import collections
import re

# Of a multiprocessor: registers, bytes of shared memory, bytes of it that each thread block takes besides its own, warps,
# blocks; lanes of a quarter for fp32, for integers, for special functions; bytes a clock from shared memory; products
# (multiply and add) a clock of a quarter's tensor core. CUDA C++ Programming Guide, compute capabilities, and NVIDIA's
# whitepapers; T4's shared memory: arXiv 1903.07486, table 3.1.
Limits = collections.namedtuple("Limits", "registers shared reserved warps blocks fp32 integer special bytes products")
LIMITS = {
    75: Limits(65536, 64 << 10, 0, 32, 16, 16, 16, 4, 64, 128),
    80: Limits(65536, 164 << 10, 1 << 10, 64, 32, 16, 16, 4, 128, 256),
    90: Limits(65536, 228 << 10, 1 << 10, 64, 32, 32, 16, 4, 128, 512),
}
# Name, multiprocessors, clock in Hz, bytes a second of memory, flops a second of tensor cores: datasheets.
Card = collections.namedtuple("Card", "name multiprocessors clock memory tensor")
CARDS = {
    75: Card("T4", 40, 1.59e9, 320e9, 65e12),
    80: Card("A100", 108, 1.41e9, 2039e9, 312e12),
    90: Card("H100", 132, 1.83e9, 3350e9, 989e12),
}
FP32 = re.compile(r"F(ADD|MUL|FMA|MNMX|SEL|SETP)|HADD2|HFMA2|HMUL2|F2FP")
SPECIAL = re.compile(r"MUFU|F2F|I2F|F2I|POPC|FLO")
INTEGER = re.compile(r"IADD|IMAD|ISETP|LOP3|SHF|LEA|IMNMX|SEL|PRMT|MOV|IABS|PLOP3")
BYTES = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}


def functions(listing):
    """Name -> lines of nvdisasm's output: (label, None) or (None, instruction)."""
    found, lines = {}, None
    for line in listing.splitlines():
        if head := re.match(r"\.text\.(\S+):", line):
            lines = found.setdefault(head.group(1), [])
        elif lines is not None and (label := re.match(r"(\.L\S+):", line)):
            lines.append((label.group(1), None))
        elif lines is not None and (code := re.match(r"\s+/\*[0-9a-f]+\*/\s+(.*?);", line)):
            lines.append((None, re.sub(r"^@!?U?P\w+\s+", "", code.group(1)).strip()))
    return found


def loops(lines):
    """The instructions of each loop, inner ones before those around them."""
    places = {label: i for i, (label, _) in enumerate(lines) if label}
    found = []
    for i, (_, code) in enumerate(lines):
        back = code and re.match(r"BRA\S*\s.*`\((\.L\S+)\)", code)
        if back and places.get(back.group(1), i) < i:
            found.append((places[back.group(1)], i))
    found.sort(key=lambda span: span[1] - span[0])
    return [(span, [code for _, code in lines[span[0]:span[1] + 1] if code]) for span in found]


def bytes_of(code):
    """What one lane moves between memory and the multiprocessor."""
    parts = code.split()[0].split(".")
    if parts[0] not in ("LDG", "STG", "LDGSTS"):
        return 0
    return next((BYTES[p] for p in parts if p in BYTES), 4)


def inner_loops(lines, tensor):
    """Of a kernel that tensor cores bound the loop around all its products, of which one turn makes `tensor`; a loop inside
    it counts as often as that number asks for. Else every innermost loop that has products, or if none has, that moves the
    widest words: loops that run once a step have neither. Code that is not in a loop counts as one."""
    every = loops(lines)
    if tensor:
        products = lambda body: sum("HMMA" in c for c in body)
        most = max((products(body) for _, body in every), default=0)
        if not most:
            return []
        span, whole = next(loop for loop in every if products(loop[1]) == most)
        inside = [body for (begin, end), body in every
                  if products(body) and span[0] <= begin and end <= span[1] and (begin, end) != span]
        if not inside or most >= tensor:
            return [whole]
        turns = (tensor - most) // products(inside[0])
        return [whole] + inside[:1] * turns
    multiplies = any("HMMA" in c for _, body in every for c in body)
    widest = max((bytes_of(c) for _, body in every for c in body), default=0)
    chosen = []
    for span, body in every:
        inside = any(span[0] <= other[0] and other[1] <= span[1] for other, _ in chosen)
        around = any(span[0] <= other[0] and other[1] <= span[1] for other, _ in every if other != span)
        wanted = "HMMA" in " ".join(body) if multiplies else widest and any(bytes_of(c) == widest for c in body)
        if wanted and not inside and not (multiplies and around):
            chosen.append((span, body))
    return [body for _, body in chosen] or [[code for _, code in lines if code]]


def clocks(body, architecture):
    """Clocks of a quarter of a multiprocessor that a warp takes of each kind of unit for one turn of the loop."""
    limits = LIMITS[architecture]
    take = collections.Counter(issue=len(body))
    for code in body:
        name = code.split()[0]
        if name.startswith("HMMA"):
            products = 2048 if ".16816." in name else 1024
            take["tensor"] += products / limits.products
        elif name.startswith("LDSM"):
            take["shared"] += 4 * 128 * (4 if ".4" in name else 1) / limits.bytes
        elif name.startswith(("LDS", "STS", "LDGSTS")):
            width = next((BYTES[p] for p in name.split(".") if p in BYTES), 4)
            take["shared"] += 4 * 32 * width / limits.bytes
        elif name.startswith("SHFL"):
            take["shared"] += 4 * 128 / limits.bytes
        elif SPECIAL.match(name):
            take["special"] += 32 / limits.special
        elif FP32.match(name):
            take["fp32"] += 32 / limits.fp32
        elif INTEGER.match(name):
            take["integer"] += 32 / limits.integer
    return take


def blocks_at_once(architecture, threads, registers, shared):
    """Thread blocks that a multiprocessor holds."""
    limits, warps = LIMITS[architecture], threads // 32
    by_registers = limits.registers // (-(-registers * 32 // 256) * 256) // warps
    by_shared = limits.shared // (shared + limits.reserved) if shared + limits.reserved else limits.blocks
    return min(limits.blocks, limits.warps // warps, by_registers, by_shared)


def share(bodies, architecture, tensor, moved=None):
    """(what bounds, share at best, share without overlap) of the roofline: of tensor cores, or of memory, of which the
    bodies move `moved` bytes (as many as they ask for). At best all units work at once; without overlap each warp's work
    on one unit follows that on another's, with as many warps at once as hide latency and no more."""
    card, take = CARDS[architecture], collections.Counter()
    for body in bodies:
        take.update(clocks(body, architecture))
    if tensor:
        useful, rest = take["tensor"], {k: v for k, v in take.items() if k != "tensor"}
    else:
        moved = moved or 32 * sum(bytes_of(c) for body in bodies for c in body)
        useful = moved / (card.memory / card.multiprocessors / 4 / card.clock)
        rest = dict(take)
    worst = max(rest, key=rest.get)
    bound = worst if rest[worst] > useful else "tensor" if tensor else "memory"
    return bound, min(1.0, useful / rest[worst]), useful / (useful + sum(v for k, v in rest.items() if k != "issue"))
