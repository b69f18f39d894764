"""What the demo says. Plain Markdown, of the kinds that models write."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DemoAnswer:
    """An answer.

    Attributes:
        words: beginnings of words that a question about it has in it, in small letters, as regular expressions.
        text: Markdown; thinking stands between `<think>` and `</think>`.
    """

    words: tuple[str, ...]
    text: str


_HELLO = """\
Hello! I am the **demo**: no model is loaded, my answers were written beforehand. Everything else is real. The words you read are \
tokens, they lie in blocks of 16, and the engine that hands out the blocks is the same that runs a language model.

A few things to try:

- Open a second chat while this one is still being written. Both go on.
- Ask for *a table*, *some Python code*, *a long plan*, or *how the panel works*.
- Ask the same question for several alternatives at once: the question is read once, and its blocks are shared.
- Go back to an earlier message and say something else. That makes a branch; what stands before it is not read again.
- Type `loop` for an answer that repeats itself, or `crash` to see what happens when an engine dies.

What would you like to see?
"""

_TABLE = """\
Four teas, side by side. Water that is too hot is what spoils most cups:

| Tea | Water | Time | Cups from the same leaves | Goes with |
|---|---:|---:|:---:|---|
| Green, *Sencha* | 70 °C | 1½ min | 3 | rice, fish, quiet mornings |
| Oolong, *Tieguanyin* | 90 °C | 1 min | 6 | long talks |
| Black, *Assam* | 100 °C | 4 min | 1 | milk, toast, bad weather |
| Rooibos | 100 °C | 8 min | 1 | late evenings |

Two rules are enough to remember it:

1. **The darker the leaf, the hotter the water.**
2. **The more often you pour, the shorter each time.**

> Rooibos is no tea at all, strictly speaking. It does not mind, and neither should you.
"""

_CODE = """\
A paged cache needs surprisingly little code. This is its heart, a pool of blocks that several conversations may share:

```python
from collections import deque


class BlockPool:
    # Blocks with reference counts.

    def __init__(self, num_blocks: int) -> None:
        self._free = deque(range(num_blocks))
        self._users = [0] * num_blocks

    def allocate(self) -> int:
        if not self._free:
            raise MemoryError("no block is free")
        block = self._free.popleft()
        self._users[block] = 1
        return block

    def share(self, block: int) -> None:
        self._users[block] += 1

    def release(self, block: int) -> None:
        self._users[block] -= 1
        if self._users[block] == 0:
            self._free.append(block)


pool = BlockPool(num_blocks=4)
first = pool.allocate()
pool.share(first)       # a second conversation begins with the same words
pool.release(first)     # the first one ends: the block stays
print(pool._users)      # [1, 0, 0, 0]
```

`share` is what makes branches cheap: a new branch takes **no** memory for what it has in common with the old one. Only where a block \
with two users is about to be written is a copy made, and that is one block, whatever the length of the conversation.

You can run it as it is:

```sh
python block_pool.py
```
"""

_PLAN = """\
# A weekend by the sea

Here is a plan for two days that leaves room for the weather. Take from it what you like.

## Before you go

1. Look at the tide table. At low tide you can walk around the point; at high tide you cannot.
2. Pack in layers. The wind at the water is colder than it looks from the train.
3. Book the first night only. The second one decides itself.

## Saturday

### Morning

- Take the early train; the seats on the **left** have the view.
- Have breakfast at the harbour. The bakery opens at seven, and the good bread is gone by nine.
- Walk out along the breakwater:
  - mind the wet stones,
  - look for the seals on the sandbank,
  - turn back when the light on the end begins to blink.

### Afternoon

- The museum of the lifeboats is small and wonderful. Ask for the logbook of 1911.
- If it rains, stay. If it does not, rent two bicycles and follow the dyke to the north.

### Evening

- Fish, potatoes, and a table at the window.
- Afterwards the beach, without shoes, however cold it is.

## Sunday

### Morning

- Sleep.
- Coffee, the large one.
- Walk around the point **if** the tide allows it. It takes about two hours; the path is marked with white stones.

### Afternoon

- Climb the lighthouse. There are 172 steps, and a bench after the first hundred.
- Write the postcards you have promised.
- Take the train at five. The one at six is full of people who have done the same as you.

## What it costs

- Two tickets, there and back: about 60
- One night: about 90
- Food: about 80, more if you order the oysters
- Bicycles: 24

In all that is a little over **250**, and worth every coin of it.
"""

_THINK = """\
<think>
The question sounds simple, so I should look for what is hidden in it. First guess: the answer is the obvious one. Let me check that \
with a small case. Two boxes, three balls: one box must hold two of them. With three boxes and three balls nothing follows. So it is \
about more things than places, not about the number itself.

Can it fail? Only if things may be cut in halves, and nobody said that. Then the general form is: with n places and more than n things, \
some place has at least two. I will give the idea first, and then one example that is not about boxes.
</think>

Short answer: **because there are more things than places.**

If you put more things into places than there are places, at least one of them must take two. It sounds like nothing, and yet it proves \
a great deal:

- Among 13 people, two have their birthday in the same month.
- In a city of a million, two people have exactly the same number of hairs on their head, since nobody has more than about 150,000.
- A file cannot be made smaller by *every* program that packs files: there are fewer short files than long ones.

What I like about it is that it tells you **that** something is there without telling you **where**. You can see how I arrived at it by \
unfolding my thinking above.
"""

_PANEL = """\
## Reading the engine panel

The panel shows the memory of the engine while it works. Each cell of the **block map** is a block of 16 tokens:

| Cell | Meaning |
|---|---|
| free | holds nothing |
| cached | nobody uses it now, but what it holds can be found again |
| in use | belongs to one conversation |
| shared | belongs to several at once |

Some things to look for:

- **When you send a message**, cells light up from the left: the prompt is being read. A long one comes in pieces, so that other chats \
keep their pace.
- **When an answer ends**, its cells turn from *in use* to *cached*. The next message of the same chat finds them: that is the \
`cached 1,204` under an answer.
- **When you ask for alternatives**, the question's cells turn to *shared*. Without sharing they would be needed once for each answer; \
what was saved is counted.
- **When the pool is full**, the cells that were unused for longest are taken first. A chat whose cells are gone is read again, and you \
are told why.
- **When even that is not enough**, the least urgent chat has to wait. It is *preempted*: it keeps its words and loses its cells.

The sparklines show how many conversations take part in a step and how many tokens it computes. One tall column among small ones is a \
prompt that was read beside running answers.
"""

_RECIPE = """\
**Potato soup for two**, ready in half an hour.

*You need:*

- 500 g potatoes, of the floury kind
- 1 leek and 1 carrot
- ¾ l vegetable broth
- a little butter, salt, pepper, nutmeg
- a spoon of cream, if nobody is looking

*You do:*

1. Cut everything small. The smaller, the sooner you eat.
2. Let the leek and the carrot sweat in the butter for five minutes. They must not turn brown.
3. Add the potatoes and the broth, cover the pot, and leave it alone for fifteen minutes.
4. Press about half of it through a sieve, or crush it with a fork. The other half stays as it is, so that there is something to chew.
5. Salt, pepper, and just a breath of nutmeg. The cream goes in last.

With it goes dark bread, toasted, and 🧄 if you are among friends. *Guten Appetit, bon appétit, いただきます!*
"""

_SHORT = """\
Yes. And if you want to know why, ask me for a table, for code, or for a plan: each of them looks different, and each of them is kept \
in the same small blocks.
"""

_STORY = """\
The lighthouse keeper had one rule: the lamp must never go out. So he slept in pieces, an hour here and an hour there, and in between he \
turned the wheel, trimmed the wick and wrote down the ships.

One winter the fog came and stayed for nine days. No ship passed that he could see. On the fifth day he asked himself for whom the lamp \
was burning. On the seventh he stopped writing, since there was nothing to write. On the ninth, a little before morning, he heard a bell, \
quite near, then nothing more.

When the fog had lifted, a boat lay in the harbour that he did not know. On the bench before his door stood a basket with apples, and a \
note in a child's hand:

> *We could not see you either. But there was a place where the fog was brighter.*

He wrote that down, under the ships.
"""

ANSWERS = (
    DemoAnswer(("hello", "hi\\b", "hey\\b", "help", "try", "who are you", "what can"), _HELLO),
    DemoAnswer(("table", "compare", "comparison", "versus"), _TABLE),
    DemoAnswer(("code", "python", "function", "program", "class"), _CODE),
    DemoAnswer(("plan", "list", "long", "steps", "trip", "weekend"), _PLAN),
    DemoAnswer(("think", "why", "reason", "prove", "puzzle"), _THINK),
    DemoAnswer(("panel", "block", "memory", "cache", "engine", "how does"), _PANEL),
    DemoAnswer(("recipe", "cook", "soup", "dinner"), _RECIPE),
    DemoAnswer(("story", "poem", "tell me", "write"), _STORY),
    DemoAnswer((), _SHORT),
)
LOOP = DemoAnswer((), "I will say this until somebody presses Esc.\n\n" + "and again, " * 800)
CRASH = "crash"
REPEAT = "loop"
