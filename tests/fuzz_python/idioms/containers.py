"""Lists, dictionaries, sets, tuples, comprehensions, itertools, sorting."""

from __future__ import annotations

IDIOMS = r"""
## list comprehension with a condition
$new = sum([$t * step$u for step$u in range(4) if step$u != $n])

## nested comprehension
$new = sum(a$u * b$u for a$u in ($t, $t) for b$u in (1, $f))

## dictionary comprehension
named$u = {f"k{step$u}": $t + step$u for step$u in range(3)}
$new = named$u["k2"] * len(named$u)
$keep = list(named$u)

## list appended and popped
stack$u = [$t]
stack$u.append($t * 2)
stack$u.insert(0, $f)
$new = stack$u.pop() + stack$u.pop(0)
$keep = len(stack$u)

## history grows
$s.history.append($n)
$new = $t * len($s.history)

## history of numbers, bounded
$s.history.append($f)
if len($s.history) > 2:
    $s.history.pop(0)
$new = $t + len($s.history)

## tensors in a list of the state
$s.table.setdefault("seen", []).append($t.detach())
$new = $t + sum($s.table["seen"]).sum()

## list mutated through an alias
first$u = [1, 2]
alias$u = first$u
alias$u += [$n]
$new = $t * sum(first$u)
$keep = first$u is alias$u

## slices of a list
values$u = [$f, 1.0, $t, $n, 2.5]
values$u[1:3] = [$t]
values$u.reverse()
$new = values$u[0] + values$u[-2]
$keep = values$u[::2][0]

## list extended, copied, cleared
items$u = list(range(3))
items$u.extend(number$u * 2 for number$u in items$u[:])
copied$u = items$u.copy()
items$u.clear()
$new = $t * sum(copied$u)
$keep = (items$u, copied$u)

## list counted and searched
names$u = ["b", "a", "b"]
$keep = (names$u.count("b"), names$u.index("a"), "c" in names$u, names$u * 2)
$new = $t + names$u.count("b")

## dictionary order
order$u = {"b": $t, "a": $t * 2}
order$u["c"] = $f
order$u["b"] = order$u.pop("b") + 1
$new = sum(value$u * (step$u + 1) for step$u, value$u in enumerate(order$u.values()))
$keep = list(order$u)

## dictionary merged and asked
base$u = {"lr": $f, "n": $n}
merged$u = {**base$u, "n": 2} | {"x": 1}
$new = $t * merged$u.get("lr", 1.0) + merged$u.get("none", 0.5)
$keep = sorted(merged$u.items())

## dictionary of the state
$s.table["calls"] = $s.table.get("calls", 0) + 1
$new = $t * $s.table["calls"]

## dictionary of the state with tensors
if "mean" not in $s.table:
    $s.table["mean"] = torch.zeros(())
$s.table["mean"] = 0.5 * $s.table["mean"] + $t.detach().mean()
$new = $t - $s.table["mean"]

## dictionary key removed
$s.table["temporary"] = $n
$keep = $s.table.pop("temporary")
del_me$u = {"a": 1, "b": 2}
del del_me$u["a"]
$keep = del_me$u.popitem()

## dictionary keyed by tuples and enums
grid$u = {(0, 1): $f, (1, 0): $n}
$new = $t * grid$u[(0, 1)] + grid$u.setdefault((2, 2), 4)
$keep = list(grid$u)

## defaultdict and Counter
groups$u = collections.defaultdict(list)
for step$u, word$u in enumerate("abca"):
    groups$u[word$u].append(step$u)
counted$u = collections.Counter("abca")
counted$u.update("zz")
$new = $t * len(groups$u["a"]) + counted$u["z"]
$keep = (dict(groups$u), counted$u.most_common(1))

## Counter kept
tally$u = collections.Counter()
--
tally$u[("even", "odd")[$n % 2]] += 1
$new = $t * sum(tally$u.values())

## OrderedDict
ordered$u = collections.OrderedDict(a=$t, b=$t * 2)
ordered$u.move_to_end("a")
$new = next(iter(ordered$u.values()))
$keep = list(ordered$u)

## ChainMap
chain$u = collections.ChainMap({"a": $f}, {"a": 1.0, "b": 2.0})
$new = $t * chain$u["a"] + chain$u["b"]

## deque
queue$u = collections.deque([1, 2, 3])
queue$u.rotate($n)
queue$u.appendleft($f)
$new = $t * queue$u.popleft() + queue$u[0]
$keep = list(queue$u)

## deque kept, bounded
recent$u = collections.deque(maxlen=2)
--
recent$u.append($n)
$new = $t + sum(recent$u)

## set iteration
words$u = {"q", "w", "e"}
words$u.add("z")
words$u.discard("w")
$keep = list(words$u)
$new = $t * len(words$u)

## set algebra
left$u, right$u = {1, 2, 3}, {2, $n}
$keep = (sorted(left$u | right$u), sorted(left$u & right$u), left$u - right$u <= left$u, 2 in right$u)
$new = $t + len(left$u ^ right$u)

## set of the state
$s.names.add(f"n{$n % 3}")
$new = $t * len($s.names)

## frozenset as a key
keys$u = {frozenset((1, 2)): $f}
$new = $t * keys$u[frozenset((2, 1))]

## tuple unpacking
first$u, (second$u, *rest$u) = $t, ($f, $n, $t)
$new = first$u * second$u + rest$u[-1]
first$u, second$u = second$u, first$u
$keep = len(rest$u)

## star unpacking
head$u, *body$u, tail$u = [*range(3), $n, $f]
$new = $t * tail$u + head$u + sum(body$u)

## unpacked rows
$new = torch.stack([*$x]).sum(0)

## sorted with a key
pairs$u = [("b", $f), ("a", 2.0), ("c", -1.0)]
pairs$u.sort(key=lambda pair: pair[1], reverse=$b)
$new = $t * pairs$u[0][1]
$keep = sorted(pairs$u, key=operator.itemgetter(0))

## sorted by tensors' values
$keep = [word$u for word$u, _ in sorted({"a": $t.sum(), "b": $t.mean()}.items(), key=lambda item: item[1].item())]

## min and max with keys
$new = $t * max([1, $n, -3], key=abs) + min($f, 0.5) + max(($n, 2), default=0)

## zip, enumerate, reversed
$new = sum(a$u * b$u + step$u for step$u, (a$u, b$u) in enumerate(zip([$t, $t], (1.0, $f, 9.0))))
$keep = list(reversed([1, $n]))

## zip strict
try:
    $keep = list(zip([1, 2], [1], strict=True))
except ValueError as error$u:
    $keep = str(error$u)

## map and filter
$new = sum(map(lambda value, by: value * by, [$t, $t], [$f, 2]))
$keep = list(filter(None, [0, $n, "", "a"]))

## itertools
$new = sum(itertools.islice(itertools.accumulate([$t, $t, $t]), 2))
$keep = (list(itertools.chain([1], (2,))), list(itertools.product("ab", range(2))), list(itertools.combinations("abc", 2)))

## itertools: counts, cycles, groups
numbers$u = itertools.count(start=1, step=2)
cycle$u = itertools.cycle((1.0, $f))
$new = sum($t * next(cycle$u) + next(numbers$u) for _ in range(3))
$keep = [(key$u, len(list(group$u))) for key$u, group$u in itertools.groupby("aabbb")]

## itertools kept between calls
ticks$u = itertools.count()
--
$new = $t + next(ticks$u)

## itertools: pairs, zip_longest, takewhile
$keep = (list(itertools.pairwise([1, $n, 3])), list(itertools.zip_longest("ab", "c", fillvalue="-")))
$new = $t * sum(itertools.takewhile(lambda number: number < 3, [1, 2, 3, 1]))
$keep = list(itertools.starmap(pow, [(2, 3), (3, 2)]))

## iterator by hand
it$u = iter([$t, $t, $t])
$new = next(it$u)
$new = next(it$u) * 2
$keep = (next(it$u, None) is None, next(it$u, "end"))

## iterators over what changes
items$u = [1, $n, 3]
forwards$u, pairs$u, backwards$u = iter(items$u), zip(items$u, items$u), reversed(items$u)
$new = $t * next(forwards$u)
$BODY
items$u.append(5)
$keep = (list(forwards$u), list(pairs$u), list(backwards$u), list(forwards$u))

## iterator of a range backwards
numbers$u = reversed(range($n % 5))
$new = $t + next(numbers$u, 0.5)
$BODY
$keep = list(numbers$u)

## deque that changes under its iterator
queue$u = collections.deque([1, 2], maxlen=2 + $n % 2)
try:
    for item$u in queue$u:
        $var = $var + item$u
        if $b:
            queue$u.append(item$u)
except RuntimeError as error$u:
    $keep = str(error$u)
$keep = ((queue$u * 2).maxlen, queue$u.copy())

## heap and bisection
heap$u = [3, $n, 1.5]
heapq.heapify(heap$u)
heapq.heappush(heap$u, $f)
$new = $t * heapq.heappop(heap$u)
$keep = bisect.bisect([0.0, 0.5, 1.0], $f)

## copies
original$u = {"a": [1, $n], "b": $t}
shallow$u, deep$u = copy.copy(original$u), copy.deepcopy({"a": [1, $n]})
shallow$u["a"].append(3)
$new = shallow$u["b"] * len(original$u["a"])
$keep = deep$u

## nested containers written into
nest$u = {"rows": [[0, 1], [2, 3]]}
nest$u["rows"][1][0] += $n
nest$u["rows"].append([$f])
$new = $t * nest$u["rows"][1][0]
$keep = nest$u

## tensors as keys
key$u = $t
ids$u = {key$u: 1.5}
$new = key$u * ids$u[key$u]

## truth of containers
$keep = (bool([]), not {}, bool((0,)), [] or "empty", len({}) == 0)

## comparisons of containers
$keep = ([1, 2] < [1, $n], (1, "a") == (1, "a"), {"a": 1} == {"a": $n}, [1] is [1])

## range as a value
span$u = range(1, 10, $n % 3 + 1)
$new = $t * (span$u[1] + len(span$u))
$keep = (3 in span$u, list(span$u[:2]))

## pytree
leaves$u, spec$u = torch.utils._pytree.tree_flatten({"a": $t, "b": ($t, $n)})
$new = leaves$u[0] + leaves$u[1] * leaves$u[2]
"""
