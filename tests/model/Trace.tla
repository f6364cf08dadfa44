------------------------------- MODULE Trace -------------------------------
(* Courses that lockcore took in the simulator are courses of Redlock.tla: one step of a trace is one step of the model,
   at its time, with its effect. Nothing is left to choose, so a trace that cannot go on is a deadlock: refused.
   A tick is a microsecond. Fields of a step: at (tick), do, c (client), i (instance), n (attempt), end (of the key, or
   of the lease), ok (what was replied). *)
EXTENDS Redlock, Traces

VARIABLES t, k
Trace == Traces[t]
Step == Trace[k]
Owner == <<Step.c, Step.n>>

\* Of all the ends that a key may have, the one that it had (Ends is replaced by this).
Seen(c) == {end \in {Step.end} : now + TtlOf(c) - Skew <= end /\ end <= now + TtlOf(c)}

Processed ==
    /\ link[<<Step.c, Step.i>>] # <<>>
    /\ Head(link[<<Step.c, Step.i>>]) = [do |-> Step.do, owner |-> Owner]
    /\ Process(Step.c, Step.i)
    /\ LET before == key[Step.i] after == key'[Step.i]
       IN CASE Step.do = "set" -> IF Step.ok THEN before = None /\ after.owner = Owner ELSE before # None /\ after = before
            [] Step.do = "ext" -> IF Step.ok THEN before.owner = Owner /\ after.end = Step.end ELSE before.owner # Owner
            [] Step.do = "del" -> IF Step.ok THEN before.owner = Owner /\ after = None ELSE before.owner # Owner

Happens ==
    CASE Step.do = "acquire" -> Acquire(Step.c) /\ client'[Step.c].attempt = Step.n
      [] Step.do = "grant" -> Grant(Step.c) /\ client'[Step.c].until = Step.end
      [] Step.do = "give up" -> GiveUp(Step.c)
      [] Step.do = "release" -> Release(Step.c)
      [] Step.do = "extend" -> Extend(Step.c)
      [] Step.do = "extended" -> Extended(Step.c) /\ client'[Step.c].until = Step.end
      [] Step.do = "crash" -> Crash(Step.i) /\ key'[Step.i] = None /\ mute'[Step.i] > now
      [] Step.do = "again" -> Again(Step.c, Step.i, Step.n)
      [] Step.do = "lose" -> Lose(Step.c, Step.i)
      [] OTHER -> Processed

TraceInit == Init /\ t \in 1..Len(Traces) /\ k = 1
TraceNext ==
    \/ k > Len(Trace) /\ UNCHANGED <<vars, t, k>>
    \/ k <= Len(Trace) /\ now < Step.at /\ Pass(Step.at) /\ UNCHANGED <<t, k>>
    \/ k <= Len(Trace) /\ now = Step.at /\ Happens /\ k' = k + 1 /\ t' = t
TraceSpec == TraceInit /\ [][TraceNext]_<<vars, t, k>>
=============================================================================
