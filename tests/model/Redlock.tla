------------------------------ MODULE Redlock ------------------------------
(* Redlock as lockcore does it: clients ask N instances for one key, count votes, hold, extend, give back.

   Time is whole ticks. A key that is set for T ticks ends T-Skew .. T ticks later: an instance's clock may run fast by
   that much. Commands of a client reach an instance in their order (one connection), at any time or never; a client may
   stand still for any time between any two of its steps. A crash breaks an instance's connections, with what was under
   way on them, and may lose its key. *)
EXTENDS Naturals, FiniteSets, Sequences, TLC

CONSTANTS Clients, Instances,
          Horizon,      \* the last tick
          Attempts,     \* of each client
          Crashes,      \* at most, with and without memory
          Losses,       \* of single commands, at most
          Owed,         \* releases that are sent once more, at most
          Skew,         \* by how many ticks a key may end early
          Ttl,          \* of a lease, as every client believes
          LongTtl,      \* of the clients in LongOnes
          LongOnes,
          Allowance,    \* ticks that a client gives up for drift
          Quorum,       \* votes that win
          Trust,        \* a restarted instance votes at once
          OwnerCheck,   \* a release deletes its own key only
          CleanLate,    \* whoever gives up sends a release to every instance that was asked, not to those that voted only
          FromSending,  \* an extension counts from when it was sent, and is refused when that has passed
          Forgets       \* times an instance may lose its key without a restart that anybody sees

VARIABLES now,     \* true time
          key,     \* instance -> [owner: token, end: tick] or None
          mute,    \* instance -> tick until which it abstains
          link,    \* <<client, instance>> -> commands under way, in order
          client,  \* client -> what it does
          crashes, losses, owed, forgets
vars == <<now, key, mute, link, client, crashes, losses, owed, forgets>>

None == [owner |-> <<>>, end |-> 0]
Idle(n) == [phase |-> "idle", attempt |-> n, start |-> 0, votes |-> {}, until |-> 0, again |-> FALSE]
TtlOf(c) == IF c \in LongOnes THEN LongTtl ELSE Ttl
Token(c) == <<c, client[c].attempt>>
Send(links, c, command) == [p \in Clients \X Instances |-> IF p[1] = c THEN Append(links[p], command) ELSE links[p]]
SendTo(links, c, to, command) ==
    [p \in Clients \X Instances |-> IF p[1] = c /\ p[2] \in to THEN Append(links[p], command) ELSE links[p]]
Holds(c) == client[c].phase \in {"held", "extending"} /\ now < client[c].until

Init == /\ now = 0
        /\ key = [i \in Instances |-> None]
        /\ mute = [i \in Instances |-> 0]
        /\ link = [p \in Clients \X Instances |-> <<>>]
        /\ client = [c \in Clients |-> Idle(0)]
        /\ crashes = 0 /\ losses = 0 /\ owed = 0 /\ forgets = 0

(* -- clients ---------------------------------------------------------------------------------------------------- *)

Acquire(c) ==
    /\ client[c].phase = "idle" /\ client[c].attempt < Attempts
    /\ LET n == client[c].attempt + 1
       IN /\ client' = [client EXCEPT ![c] = [Idle(n) EXCEPT !.phase = "asking", !.start = now]]
          /\ link' = Send(link, c, [do |-> "set", owner |-> <<c, n>>])
    /\ UNCHANGED <<now, key, mute, crashes, losses, owed, forgets>>

Grant(c) ==
    LET until == client[c].start + TtlOf(c) - Allowance
    IN /\ client[c].phase = "asking" /\ Cardinality(client[c].votes) >= Quorum /\ now < until
       /\ client' = [client EXCEPT ![c].phase = "held", ![c].until = until, ![c].votes = {}]
       /\ UNCHANGED <<now, key, mute, link, crashes, losses, owed, forgets>>

GiveUp(c) ==
    /\ client[c].phase = "asking"
    /\ LET asked == IF CleanLate THEN Instances ELSE client[c].votes
       IN link' = SendTo(link, c, asked, [do |-> "del", owner |-> Token(c)])
    /\ client' = [client EXCEPT ![c] = Idle(client[c].attempt)]
    /\ UNCHANGED <<now, key, mute, crashes, losses, owed, forgets>>

Release(c) ==
    /\ client[c].phase \in {"held", "extending"}
    /\ link' = Send(link, c, [do |-> "del", owner |-> Token(c)])
    /\ client' = [client EXCEPT ![c] = Idle(client[c].attempt)]
    /\ UNCHANGED <<now, key, mute, crashes, losses, owed, forgets>>

Again(c, i, n) ==  \* what an instance may not have heard, when its connection is made again, or to be sure
    /\ owed < Owed /\ n <= client[c].attempt /\ (client[c].phase = "idle" \/ n < client[c].attempt)
    /\ owed' = owed + 1
    /\ link' = [link EXCEPT ![<<c, i>>] = Append(@, [do |-> "del", owner |-> <<c, n>>])]
    /\ UNCHANGED <<now, key, mute, client, crashes, losses, forgets>>

Extend(c) ==
    /\ client[c].phase = "held" /\ ~client[c].again  \* also when its time is over: it may stand still before it sends
    /\ client' = [client EXCEPT ![c].phase = "extending", ![c].start = now, ![c].votes = {}, ![c].again = TRUE]
    /\ link' = Send(link, c, [do |-> "ext", owner |-> Token(c)])
    /\ UNCHANGED <<now, key, mute, crashes, losses, owed, forgets>>

Extended(c) ==
    LET until == (IF FromSending THEN client[c].start ELSE now) + TtlOf(c) - Allowance
    IN /\ client[c].phase = "extending" /\ Cardinality(client[c].votes) >= Quorum /\ now < until
       /\ FromSending => now < client[c].until
       /\ client' = [client EXCEPT ![c].phase = "held", ![c].until = until, ![c].votes = {}]
       /\ UNCHANGED <<now, key, mute, link, crashes, losses, owed, forgets>>

(* -- instances -------------------------------------------------------------------------------------------------- *)

Ends(c) == (now + TtlOf(c) - Skew)..(now + TtlOf(c))

Voted(c, i, phase, owner) ==
    client' = IF client[c].phase = phase /\ Token(c) = owner
              THEN [client EXCEPT ![c].votes = @ \cup {i}] ELSE client

Process(c, i) ==
    /\ link[<<c, i>>] # <<>>
    /\ LET command == Head(link[<<c, i>>])
       IN /\ link' = [link EXCEPT ![<<c, i>>] = Tail(@)]
          /\ CASE command.do = "set" /\ now >= mute[i] /\ key[i] = None ->
                    /\ \E end \in Ends(c) : key' = [key EXCEPT ![i] = [owner |-> command.owner, end |-> end]]
                    /\ Voted(c, i, "asking", command.owner)
               [] command.do = "ext" /\ now >= mute[i] /\ key[i].owner = command.owner ->
                    /\ \E end \in Ends(c) : key' = [key EXCEPT ![i].end = end]
                    /\ Voted(c, i, "extending", command.owner)
               [] command.do = "del" /\ (key[i].owner = command.owner \/ ~OwnerCheck) ->
                    key' = [key EXCEPT ![i] = None] /\ UNCHANGED client
               [] OTHER -> UNCHANGED <<key, client>>
    /\ UNCHANGED <<now, mute, crashes, losses, owed, forgets>>

Crash(i) ==
    /\ crashes < Crashes
    /\ crashes' = crashes + 1
    /\ link' = [p \in Clients \X Instances |-> IF p[2] = i THEN <<>> ELSE link[p]]
    /\ \/ UNCHANGED <<key, mute>>  \* it remembers
       \/ /\ key' = [key EXCEPT ![i] = None]
          /\ mute' = [mute EXCEPT ![i] = IF Trust THEN 0 ELSE now + Ttl]
    /\ UNCHANGED <<now, client, losses, owed, forgets>>

Lose(c, i) ==
    /\ losses < Losses /\ link[<<c, i>>] # <<>>
    /\ losses' = losses + 1
    /\ link' = [link EXCEPT ![<<c, i>>] = Tail(@)]
    /\ UNCHANGED <<now, key, mute, client, crashes, owed, forgets>>

Forget(i) ==
    /\ forgets < Forgets /\ key[i] # None
    /\ forgets' = forgets + 1
    /\ key' = [key EXCEPT ![i] = None]
    /\ UNCHANGED <<now, mute, link, client, crashes, losses, owed>>

Pass(to) ==  \* as many ticks as it takes
    /\ now' = to
    /\ key' = [i \in Instances |-> IF key[i].end <= to THEN None ELSE key[i]]
    /\ mute' = [i \in Instances |-> IF mute[i] <= to THEN 0 ELSE mute[i]]
    /\ UNCHANGED <<link, client, crashes, losses, owed, forgets>>

Tick == now < Horizon /\ Pass(now + 1)

Next == \/ Tick
        \/ \E c \in Clients : Acquire(c) \/ Grant(c) \/ GiveUp(c) \/ Release(c) \/ Extend(c) \/ Extended(c)
        \/ \E c \in Clients, i \in Instances : Process(c, i) \/ Lose(c, i) \/ \E n \in 1..Attempts : Again(c, i, n)
        \/ \E i \in Instances : Crash(i) \/ Forget(i)

Spec == Init /\ [][Next]_vars
Symmetry == Permutations(Instances)
Alike == Permutations(Clients)  \* where clients have the same TTL
Both == Symmetry \cup Alike

(* -- states that are alike -----------------------------------------------------------------------------------------

   They differ in nothing but what can have no effect any more, so what is reached from one is reached from the other, and
   one of them is looked at (VIEW): a DEL or an extension whose key is gone; votes of who cannot win; ticks that are over
   or behind the horizon. An instance is what it has and what is under way to it, so it does not matter which one it is.
   With OwnerCheck, CleanLate and FromSending only: without them it may matter who voted, or a DEL of another. *)

Live(c, i) ==
    LET line == link[<<c, i>>]
        Works(command) == \/ command.do = "set" \/ command.owner = key[i].owner
                          \/ \E k \in 1..Len(line) : line[k].do = "set" /\ line[k].owner = command.owner  \* it is ahead
    IN IF line = <<>> THEN line ELSE SelectSeq(line, Works)

CanWin(c) ==
    /\ client[c].phase \in {"asking", "extending"} /\ now < client[c].start + TtlOf(c) - Allowance
    /\ LET asked == [do |-> IF client[c].phase = "asking" THEN "set" ELSE "ext", owner |-> Token(c)]
           open == {i \in Instances : i \in client[c].votes \/ \E k \in 1..Len(link[<<c, i>>]) : link[<<c, i>>][k] = asked}
       IN Cardinality(open) >= Quorum /\ (asked.do = "ext" => now < client[c].until)

Cut(tick) == IF tick <= now THEN 0 ELSE IF tick > Horizon THEN Horizon + 1 ELSE tick

View ==
    LET wins == [c \in Clients |-> CanWin(c)]
        about == [c \in Clients |->
            LET is == client[c]
            IN <<IF is.phase = "extending" /\ ~wins[c] THEN "held" ELSE is.phase, is.attempt, is.again, Cut(is.until),
                 IF wins[c] THEN Cut(is.start + TtlOf(c) - Allowance) ELSE 0>>]
        seen == [i \in Instances |-> <<key[i].owner, Cut(key[i].end), Cut(mute[i]),
                                       [c \in Clients |-> <<Live(c, i), wins[c] /\ i \in client[c].votes>>]>>]
        kinds == {seen[i] : i \in Instances}
    IN <<now, about, [kind \in kinds |-> Cardinality({i \in Instances : seen[i] = kind})], crashes, losses, owed, forgets>>

(* -- what must hold --------------------------------------------------------------------------------------------- *)

Exclusion == \A c, d \in Clients : c # d => ~(Holds(c) /\ Holds(d))

\* When all was answered, no key is left of whoever has nothing.
NothingLeft ==
    ((\A c \in Clients : client[c].phase = "idle") /\ crashes + losses = 0 /\ (\A c \in Clients, i \in Instances : Live(c, i) = <<>>))
        => \A i \in Instances : key[i] = None
=============================================================================
