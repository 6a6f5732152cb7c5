"""Move queues to the servers where the placement puts them, or to one of them, while clients use them.

A client finds a queue by EXISTS of its metadata on all servers, and remembers the answer. So a queue must be complete
on one server at any moment, and each attached client must notice that it has gone. One move, from a source to a
target:

1. ``seal``, source: the field ``moving`` of the metadata becomes ``carried <token> <target>``. Every script of ours
   refuses such a queue (``Moving``), so our clients wait. Both lists are renamed to ``bus:moving:<name>:...``, which
   no client knows, busmq's neither.
2. ``prepare`` and ``receive``, target: the messages arrive in lists of the same names, in chunks of bounded size
   (``carry`` reads them). The target knows the token, and each chunk its place: one that comes twice is ignored.
3. ``hand_over``, source: once all has arrived, ``moving`` becomes ``handed <token> <target>``, and the source answers
   with metadata, last id, ttl, lease, the batches that it has adopted, and the ledger. Until then it alone can give the
   move up (``unseal``); from now on only if the target has promised not to take over (``forget``).
4. ``take_over``, target: renames the lists, writes the rest, and notes the token as done.
5. ``retire``, source: deletes the queue, and publishes its name on ``bus:moved``.

Each step may run twice. If a move is killed, any later one finds ``moving`` and goes on from there. Meanwhile our
clients wait, up to their ``patience``; then ``Queue.follow`` asks all servers anew and goes on at the
target with its consumption, lease and acknowledgements. Nobody hears ``closed``.

One run at a time has the servers, by a lease on each of them (``bus:mover``): a second one waits for the lease of a
killed run to end, and is refused while the other lives. A run that was paused for longer than its lease does no harm
to the next one: each script knows by the token, the place or the batch before what was done already.

A client of busmq knows nothing of this. One that looks the queue up while it is moved finds the source until step 5,
and the target from step 4 on. One that was attached before keeps the source: what it pushes there during the move is
carried along (``seal`` collects it); what it pushes later waits there without metadata, until a later move gathers it
and pushes it to the queue, with new ids, behind the others. It gets no messages from the target before it attaches
anew, which it does in a new process, or 10 minutes after its last lookup. What it had taken and acknowledges after
the move comes again.
"""

from penstock.bus.move.mover import Mover
from penstock.bus.move.plan import Step
from penstock.bus.move.transfer import Moved, Stopped

__all__ = ["Moved", "Mover", "Step", "Stopped"]
