/*
 * Agreement on a block, as src/bdfl/protocol/consensus.py does it: a model for Spin.
 *
 * Honest members are 0 .. HONEST-1, liars the rest. A member that votes keeps the vote on disk, then says it. What is
 * said is a set that only grows: anybody may have heard any part of it, in any order, or nothing. A liar has said
 * everything to everybody from the beginning, or nothing, as it likes. Clocks are abstract: a timer may fire at any time.
 *
 * Three drivers use the same actions:
 *   (none)      everything that can happen, in any order: safety
 *   -DPROGRESS  the same; after `stable` what honest members say arrives before timers fire: progress
 *   -DTRACE     the recorded steps of a network of bdfl, one after the other: is it a behaviour of this model?
 *
 * -DMUTANT=NAME breaks one rule. docs/model.md tells what is shown, `python -m campaigns model` runs it.
 */

/* The instance */

#ifndef N
#define N 4 /* members */
#endif
#ifndef F
#define F 1 /* liars among them */
#endif
#ifndef Q
#define Q 3 /* quorum, by the rule of the network */
#endif
#ifndef A
#define A 3 /* attempts at each height */
#endif
#ifndef B
#define B 2 /* blocks that anybody may vote for at each height */
#endif
#ifndef H
#define H 1 /* heights */
#endif
/* -DHONEST_LEAD: no liar leads, of PROGRESS alone */
#ifndef C
#define C A /* attempts before the network is well; of PROGRESS alone */
#endif
#ifndef MUTANT
#define MUTANT NOBODY
#endif

#define NOBODY 0
#define SMALL_QUORUM 1
#define VOTE_TWICE_COUNTED 2
#define PREVOTES_DECIDE 3
#define FORGOTTEN_LOCK 4
#define PAST_QUORUMS_IGNORED 5
#define SECOND_PREVOTE 6
#define LATE_PRECOMMIT 7
#define SENT_BEFORE_KEPT 8
#define FOLLOW_ANYBODY 9
#define FORGOTTEN_VOTES 10
#define FORGOTTEN_PROGRESS 11
#define OLD_LOCK_PRECOMMITTED 12
#define LOCK_MOVES_BACK 13
#define RESTART_IN_ATTEMPT_1 14
#define LOCK_NOT_KEPT 15
#define LOCK_NOT_REPEATED 16
#define NO_WAIT 17
#define ALONE_WAITS 18
#define ATTEMPTS_MIXED 19
#define ATTEMPT_COMES_BACK 20
#define UNSAFE_LEAD 21
#define NO_LEADER 22
#define PRECOMMIT_AT_THE_END 23

#ifdef TRACE
#define HONEST N /* who lies is said by the trace */
#define SETS short
#define SLOT(h) (h)
#define NUM_SLOTS H
#define QUORUM quorum[height[who]] /* by the members of the height */
#define FOLLOWED followed[height[who]]
short liars;
int step; /* of the trace, and what it says */
byte what, who, place, when, block, more;
byte quorum[H], followed[H];
bit safe; /* the block of the step has a quorum of prevotes that an own precommit allows to prevote for it */
#else
#define HONEST (N - F)
#define SETS byte
#ifdef SILENT /* liars say nothing more once the network is well */
#define liars (stable -> 0 : ((1 << F) - 1) << HONEST)
#else
#define liars (((1 << F) - 1) << HONEST)
#endif
#if MUTANT == SMALL_QUORUM
#define QUORUM (Q - 1)
#else
#define QUORUM Q
#endif
#if MUTANT == FOLLOW_ANYBODY
#define FOLLOWED 1
#else
#define FOLLOWED (N - Q + 1) /* one more than may lie */
#endif
#ifdef PRODUCT
#define SLOT(h) (h)
#define NUM_SLOTS H
#else
#define SLOT(h) 0 /* a height's votes are forgotten once it is decided: see docs/model.md */
#define NUM_SLOTS 1
#endif
#endif

#define PREVOTE 0
#define PRECOMMIT 1
#define UNDECIDED 255
#define BIT(i) (1 << (i))
#if N <= 4
#define NUM_SETS 16
#elif N <= 8
#define NUM_SETS 256
#else
#define NUM_SETS 16384
#endif
hidden byte size_of[NUM_SETS]; /* members in a set, filled once */
#define SIZE(set) size_of[set]

/* The state. Attempts and heights as in the code, heights from 0. */

byte height[HONEST];      /* worked on */
byte attempt[HONEST];     /* state.attempt */
byte lock_attempt[HONEST] /* state.lock; attempt 0: none */, lock_block[HONEST];
byte own[HONEST * 2 * A]; /* state.own_votes: the block and 1, of a kind and attempt; 0: none cast */
bit pending[HONEST];      /* the vote cast last is kept, and not said yet */
#ifdef PROGRESS
bit late[HONEST];         /* the time to precommit in this attempt is over */
#define FORGET_LATE(i) late[i] = 0
#else
#define FORGET_LATE(i) skip
#endif
byte bound[HONEST];       /* attempt of the latest own precommit at this height; 0: none */

byte kept_attempt[HONEST], kept_lock_attempt[HONEST], kept_lock_block[HONEST]; /* on disk: KeptProgress */
byte kept[HONEST * 2 * A];                                                     /* on disk: KeptVote */

SETS said[NUM_SLOTS * 2 * A * B];   /* who has said a vote of a kind and attempt for a block */
SETS reached[NUM_SLOTS * A];        /* who has said a vote of this attempt or a later one */
byte decided[H];                    /* the block of the first commit of a height */

#define OWN(i, kind, a) ((i * 2 + kind) * A + (a) - 1)
#define SAID(h, kind, a, b) (((SLOT(h) * 2 + kind) * A + (a) - 1) * B + (b))
#define REACHED(h, a) (SLOT(h) * A + (a) - 1)

#ifdef TRACE
SETS heard[N * 2 * A * B]; /* whose vote a member holds: state.votes */
SETS heard_of[N * A];      /* whom a member heard of in an attempt or later */
SETS kept_lock_voters[N];
byte latest;               /* attempt of the latest quorum of prevotes that the acting member holds, up to its own */
#define VOTERS(i, kind, a, b) heard[((i * 2 + kind) * A + (a) - 1) * B + (b)]
#define AS_FAR(i, a) heard_of[i * A + (a) - 1]
#define IS_UP_TO_DATE(i) (latest <= lock_attempt[i])
#define IS_LATEST(i, a) (latest == (a))
#else
#define VOTERS(i, kind, a, b) (said[SAID(height[i], kind, a, b)] | liars)
#define AS_FAR(i, a) (reached[REACHED(height[i], a)] | liars)
#define IS_UP_TO_DATE(i) 1 /* it need not have heard of a later quorum */
#define IS_LATEST(i, a) 1
#endif

#if MUTANT == VOTE_TWICE_COUNTED
#define IS_QUORUM(set) (SIZE(set) >= QUORUM - 1)
#else
#define IS_QUORUM(set) (SIZE(set) >= QUORUM)
#endif

#define IS_WORKING(i) (IS_IDLE(i) && IS_PRESENT(i))
#ifdef PRODUCT
#define IS_PRESENT(i) 1
#elif defined(TRACE)
#define IS_PRESENT(i) 1
#else
#define IS_PRESENT(i) (decided[height[i]] == UNDECIDED) /* else all that is left to do is to hear of the decision */
#endif

/* _prevote and _choose: once an attempt; for the locked block, else for any (which are votable is the voter's matter). */
#define LEADERLESS_ATTEMPTS 2
#if MUTANT == FORGOTTEN_LOCK
#define IS_OWN_CHOICE(i, b) 1
#else
#define IS_OWN_CHOICE(i, b) (lock_attempt[i] == 0 -> IS_VOTABLE(i, b) : lock_block[i] == b)
#endif
/* _may_follow: no own precommit forbids it. In later attempts a safe block is prevoted for if the leader did so. */
#if MUTANT == UNSAFE_LEAD
#define IS_SAFE(i, b) 1
#else
#define IS_SAFE(i, b) (bound[i] == 0 OR_SAFE(i, b))
#endif
#define IS_CHOICE(i, b) ((IS_FREE(i) && IS_OWN_CHOICE(i, b)) || (attempt[i] > LEADERLESS_ATTEMPTS && IS_LED_TO(i, b) && IS_SAFE(i, b)))
#if MUTANT == SECOND_PREVOTE
#define HAS_PREVOTED(i, b) (own[OWN(i, PREVOTE, attempt[i])] != 0 && (lock_attempt[i] != 0 || own[OWN(i, PREVOTE, attempt[i])] <= b + 1))
#else
#define HAS_PREVOTED(i, b) (own[OWN(i, PREVOTE, attempt[i])] != 0)
#endif
#define MAY_PREVOTE(i, b) (IS_WORKING(i) && !HAS_PREVOTED(i, b) && IS_CHOICE(i, b) && IS_UP_TO_DATE(i))

/* _precommit: once an attempt, and only for a lock of this very attempt. */
#if MUTANT == OLD_LOCK_PRECOMMITTED
#define IS_LOCK_PRESENT(i) (lock_attempt[i] != 0)
#else
#define IS_LOCK_PRESENT(i) (lock_attempt[i] == attempt[i])
#endif
#define MAY_PRECOMMIT(i) (IS_WORKING(i) && IS_LOCK_PRESENT(i) && !IS_LATE(i) && own[OWN(i, PRECOMMIT, attempt[i])] == 0 && IS_UP_TO_DATE(i))
#define MAY_PRECOMMIT_LATE(i) (MUTANT == LATE_PRECOMMIT && IS_WORKING(i) && lock_attempt[i] != 0 \
    && own[OWN(i, PRECOMMIT, lock_attempt[i])] == 0)

/* _move_lock: a quorum of prevotes, of an attempt that is not ahead and later than the lock's. */
#if MUTANT == LOCK_MOVES_BACK
#define IS_LATER(i, a, b) (a != lock_attempt[i])
#elif MUTANT == PAST_QUORUMS_IGNORED
#define IS_LATER(i, a, b) (a > lock_attempt[i] && a == attempt[i])
#else
#define IS_LATER(i, a, b) (a > lock_attempt[i])
#endif
#define MAY_LOCK(i, a, b) (IS_WORKING(i) && a <= attempt[i] && IS_LATER(i, a, b) && IS_LATEST(i, a) \
    && (IS_QUORUM(VOTERS(i, PREVOTE, a, b)) || IS_LOCK_TOLD(i, a, b)))

/* _follow: enough others have voted in a later attempt. */
#define MAY_FOLLOW(i, a) (IS_WORKING(i) && a > attempt[i] && SIZE(AS_FAR(i, a)) >= FOLLOWED)

/* end_attempt: the timer fired. Who voted waits until a quorum, itself included, has come as far. */
#define HAS_VOTED(i) (own[OWN(i, PREVOTE, attempt[i])] != 0 || own[OWN(i, PRECOMMIT, attempt[i])] != 0)
#if MUTANT == NO_WAIT
#define NUM_AS_FAR 0
#elif MUTANT == ALONE_WAITS
#define NUM_AS_FAR 2
#else
#define NUM_AS_FAR QUORUM
#endif
#define MAY_END(i) (IS_WORKING(i) && (!HAS_VOTED(i) || SIZE(AS_FAR(i, attempt[i])) >= NUM_AS_FAR))

/* _is_hopeless: the prevotes it holds fell apart. Whom it expects to vote is abstract, so its own vote is enough. */
#define MAY_CUT_SHORT(i) (IS_WORKING(i) && attempt[i] <= LEADERLESS_ATTEMPTS && own[OWN(i, PREVOTE, attempt[i])] != 0)

/* _try_commit: a quorum of precommits of one attempt, its own or in a certificate that it was told. */
#if MUTANT == ATTEMPTS_MIXED
#define DECIDING(i, a, b) (VOTERS(i, PRECOMMIT, 1, b) | VOTERS(i, PRECOMMIT, 2, b) | VOTERS(i, PRECOMMIT, A, b))
#elif MUTANT == PREVOTES_DECIDE
#define DECIDING(i, a, b) VOTERS(i, PREVOTE, a, b)
#else
#define DECIDING(i, a, b) VOTERS(i, PRECOMMIT, a, b)
#endif
#define IS_IDLE(i) (height[i] < H && !pending[i])
#define MAY_COMMIT(i, a, b) (IS_IDLE(i) && IS_QUORUM(DECIDING(i, a, b)))
#define MAY_BE_TOLD(i, b) (decided[height[i]] == b)

/* The actions. Effects are carried out in their order: what is kept is on disk before anything else happens. */

#ifdef TRACE
#define IS_TOLD(j, kind, h, a, b) ((liars & BIT(j)) || (said[SAID(h, kind, a, b)] & BIT(j)))
#define MAY_ENTER(i, a) ((a == attempt[i] + 1 && (MAY_END(i) || (MAY_CUT_SHORT(i) && latest < attempt[i]))) || MAY_FOLLOW(i, a))
#define IS_CERTIFIED(a, b, h) (size_of[said[SAID(h, PRECOMMIT, a, b)] | liars] >= quorum[h])

inline hear(me, voter, sort, try, name) { /* receive_vote: a liar's votes for several blocks are all counted */
    VOTERS(me, sort, try, name) = VOTERS(me, sort, try, name) | BIT(voter);
    for (x : 1 .. try) {
        AS_FAR(me, x) = AS_FAR(me, x) | BIT(voter)
    }
    x = 0
}

inline forget_heard(me) {
    for (x : 0 .. 2 * A * B - 1) {
        heard[(me) * 2 * A * B + x] = 0
    }
    for (x : 0 .. A - 1) {
        heard_of[(me) * A + x] = 0
    }
    x = 0
}

inline find_latest(i) {
    latest = 0;
    for (y : 1 .. attempt[i]) {
        for (z : 0 .. B - 1) {
            if
            :: height[i] < H && IS_QUORUM(VOTERS(i, PREVOTE, y, z)) -> latest = y
            :: else
            fi
        }
    }
    y = 0;
    z = 0
}

inline find_safe(i, b) {
    safe = 0;
    for (y : 1 .. attempt[i]) {
        if
        :: height[i] < H && y >= bound[i] && IS_QUORUM(VOTERS(i, PREVOTE, y, b)) -> safe = 1
        :: else
        fi
    }
    y = 0
}
#endif

hidden int x, y, z, w; /* counters inside of one action */

inline keep_progress(i) {
    kept_attempt[i] = attempt[i];
    kept_lock_attempt[i] = lock_attempt[i];
    kept_lock_block[i] = lock_block[i];
}

inline enter_attempt(i, a) { /* leaves the attempt for good; the lock stays */
    attempt[i] = a;
    FORGET_LATE(i);
    keep_progress(i)
}

inline move_lock(i, a, b) {
    lock_attempt[i] = a;
    lock_block[i] = b;
    keep_progress(i);
#ifdef TRACE
    kept_lock_voters[i] = VOTERS(i, PREVOTE, a, b)
#endif
}

inline tell(i, kind, a, b) { /* a vote is in the network; the attempts up to it are reached */
    for (x : 0 .. B - 1) { /* two votes of a kind and attempt would convict an honest member */
        assert(x == b || !(said[SAID(height[i], kind, a, x)] & BIT(i)))
    }
    said[SAID(height[i], kind, a, b)] = said[SAID(height[i], kind, a, b)] | BIT(i);
    for (x : 1 .. a) {
        reached[REACHED(height[i], x)] = reached[REACHED(height[i], x)] | BIT(i)
    }
    x = 0
}

inline cast(i, kind, a, b) { /* Store(KeptVote), and only then Send */
    own[OWN(i, kind, a)] = b + 1;
    bound[i] = (kind == PRECOMMIT -> a : bound[i]);
#if MUTANT == SENT_BEFORE_KEPT
    tell(i, kind, a, b);
#else
    kept[OWN(i, kind, a)] = b + 1;
#endif
#ifdef TRACE
    hear(i, i, kind, a, b);
#endif
    pending[i] = 1
}

inline say(i) { /* the effect after Store, or say_again after a restart */
    for (y : 1 .. A) {
#if MUTANT == SENT_BEFORE_KEPT
        kept[OWN(i, PREVOTE, y)] = own[OWN(i, PREVOTE, y)];
        kept[OWN(i, PRECOMMIT, y)] = own[OWN(i, PRECOMMIT, y)];
#else
        if
        :: own[OWN(i, PREVOTE, y)] != 0 -> tell(i, PREVOTE, y, own[OWN(i, PREVOTE, y)] - 1)
        :: else
        fi;
        if
        :: own[OWN(i, PRECOMMIT, y)] != 0 -> tell(i, PRECOMMIT, y, own[OWN(i, PRECOMMIT, y)] - 1)
        :: else
        fi
#endif
    }
    y = 0;
    pending[i] = 0
}

#define HAS_KEPT(i, a) (kept[OWN(i, PREVOTE, a)] != 0 || kept[OWN(i, PRECOMMIT, a)] != 0)

inline restart(i) { /* begin: memory is lost; attempt, lock and votes come from disk, all of it is said again */
    attempt[i] = kept_attempt[i];
    lock_attempt[i] = kept_lock_attempt[i];
    lock_block[i] = kept_lock_block[i];
#if MUTANT == FORGOTTEN_PROGRESS || MUTANT == FORGOTTEN_VOTES
    attempt[i] = 1;
#endif
#if MUTANT == FORGOTTEN_PROGRESS || MUTANT == FORGOTTEN_VOTES || MUTANT == LOCK_NOT_KEPT
    lock_attempt[i] = 0;
    lock_block[i] = 0;
#endif
    FORGET_LATE(i);
    bound[i] = 0;
    for (y : 1 .. A) {
#if MUTANT == FORGOTTEN_VOTES
        kept[OWN(i, PREVOTE, y)] = 0;
        kept[OWN(i, PRECOMMIT, y)] = 0;
#endif
        own[OWN(i, PREVOTE, y)] = kept[OWN(i, PREVOTE, y)];
        own[OWN(i, PRECOMMIT, y)] = kept[OWN(i, PRECOMMIT, y)];
        bound[i] = (own[OWN(i, PRECOMMIT, y)] -> y : bound[i]);
        if
        :: HAS_KEPT(i, y) && y > attempt[i] -> attempt[i] = y
        :: else
        fi
    }
    y = 0;
#if MUTANT == RESTART_IN_ATTEMPT_1
    attempt[i] = 1;
#endif
#if MUTANT == FORGOTTEN_PROGRESS || MUTANT == FORGOTTEN_VOTES || MUTANT == LOCK_NOT_KEPT || MUTANT == RESTART_IN_ATTEMPT_1
    keep_progress(i);
#endif
#if MUTANT == SENT_BEFORE_KEPT
    pending[i] = 0;
#endif
#ifdef TRACE
    forget_heard(i);
    for (y : 1 .. A) {
        if
        :: own[OWN(i, PREVOTE, y)] != 0 -> hear(i, i, PREVOTE, y, own[OWN(i, PREVOTE, y)] - 1)
        :: else
        fi;
        if
        :: own[OWN(i, PRECOMMIT, y)] != 0 -> hear(i, i, PRECOMMIT, y, own[OWN(i, PRECOMMIT, y)] - 1)
        :: else
        fi
    }
    y = 0;
    if
    :: lock_attempt[i] != 0 ->
        for (y : 0 .. N - 1) {
            if
            :: kept_lock_voters[i] & BIT(y) -> hear(i, y, PREVOTE, lock_attempt[i], lock_block[i])
            :: else
            fi
        }
        y = 0
    :: else
    fi
#endif
}

inline start_height(i) { /* Draft.start_height: nothing of the height before binds */
    attempt[i] = 1;
    lock_attempt[i] = 0;
    lock_block[i] = 0;
    bound[i] = 0;
    FORGET_LATE(i);
    keep_progress(i);
    for (y : 1 .. A) {
        own[OWN(i, PREVOTE, y)] = 0;
        own[OWN(i, PRECOMMIT, y)] = 0;
        kept[OWN(i, PREVOTE, y)] = 0;
        kept[OWN(i, PRECOMMIT, y)] = 0
    }
    y = 0
#ifdef TRACE
    ; forget_heard(i)
#endif
}

inline commit(i, b) { /* _commit; the first commit of a height says what the others must come to */
    assert(decided[height[i]] == UNDECIDED || decided[height[i]] == b);
#if !defined(TRACE) && !defined(PRODUCT)
    if
    :: decided[height[i]] == UNDECIDED ->
        decided[height[i]] = b;
        forget_height()
    :: else
    fi;
#else
    decided[height[i]] = b;
#endif
    start_height(i);
    height[i] = height[i] + 1
}

inline forget_height() { /* the votes of a decided height: nobody needs them to hear of its decision */
    for (z : 0 .. HONEST - 1) {
        start_height(z);
        pending[z] = 0
    }
    z = 0;
    for (y : 0 .. NUM_SLOTS * 2 * A * B - 1) {
        said[y] = 0
    }
    for (y : 0 .. NUM_SLOTS * A - 1) {
        reached[y] = 0
    }
    y = 0
}

/* Safety, stronger than that no two honest members commit different blocks: no two blocks could be committed. */
inline check_quorums(i) {
    w = UNDECIDED;
    for (y : 1 .. A) {
        for (z : 0 .. B - 1) {
            if
            :: IS_QUORUM(DECIDING(i, y, z)) ->
                assert(w == UNDECIDED || w == z);
                w = z
            :: else
            fi
        }
    }
    w = 0;
    y = 0;
    z = 0
}

/* What each member can do, as options of a loop. */

#define EACH_BLOCK_1(M, i, a) M(i, a, 0)
#define EACH_BLOCK_2(M, i, a) M(i, a, 0) M(i, a, 1)
#define EACH_BLOCK_3(M, i, a) EACH_BLOCK_2(M, i, a) M(i, a, 2)
#define EACH_ATTEMPT_1(M, E, i) E(M, i, 1)
#define EACH_ATTEMPT_2(M, E, i) EACH_ATTEMPT_1(M, E, i) E(M, i, 2)
#define EACH_ATTEMPT_3(M, E, i) EACH_ATTEMPT_2(M, E, i) E(M, i, 3)
#define EACH_ATTEMPT_4(M, E, i) EACH_ATTEMPT_3(M, E, i) E(M, i, 4)
#define EACH_ATTEMPT_5(M, E, i) EACH_ATTEMPT_4(M, E, i) E(M, i, 5)
#define EACH_ATTEMPT_6(M, E, i) EACH_ATTEMPT_5(M, E, i) E(M, i, 6)
#define EACH_ATTEMPT_7(M, E, i) EACH_ATTEMPT_6(M, E, i) E(M, i, 7)
#define EACH_ATTEMPT_8(M, E, i) EACH_ATTEMPT_7(M, E, i) E(M, i, 8)
#define NO_BLOCK(M, i, a) M(i, a)
#define EACH_ATTEMPT_OF_BLOCK_1(M, i, b) M(i, 1, b)
#define EACH_ATTEMPT_OF_BLOCK_2(M, i, b) EACH_ATTEMPT_OF_BLOCK_1(M, i, b) M(i, 2, b)
#define EACH_ATTEMPT_OF_BLOCK_3(M, i, b) EACH_ATTEMPT_OF_BLOCK_2(M, i, b) M(i, 3, b)
#define EACH_ATTEMPT_OF_BLOCK_4(M, i, b) EACH_ATTEMPT_OF_BLOCK_3(M, i, b) M(i, 4, b)
#define EACH_ATTEMPT_OF_BLOCK_5(M, i, b) EACH_ATTEMPT_OF_BLOCK_4(M, i, b) M(i, 5, b)
#define EACH_ATTEMPT_OF_BLOCK_6(M, i, b) EACH_ATTEMPT_OF_BLOCK_5(M, i, b) M(i, 6, b)
#define EACH_ATTEMPT_OF_BLOCK_7(M, i, b) EACH_ATTEMPT_OF_BLOCK_6(M, i, b) M(i, 7, b)
#define EACH_ATTEMPT_OF_BLOCK_8(M, i, b) EACH_ATTEMPT_OF_BLOCK_7(M, i, b) M(i, 8, b)
#define JOIN(name, count) name ## count
#define NAMED(name, count) JOIN(name, count)
#define EACH_ATTEMPT(M, E, i) NAMED(EACH_ATTEMPT_, A)(M, E, i)
#define OR_DECIDED(i, b) NAMED(EACH_ATTEMPT_OF_BLOCK_, A)(OR_DECIDED_IN, i, b)
#define EACH_BLOCK NAMED(EACH_BLOCK_, B)
#define EACH_MEMBER_2(M) M(0) M(1)
#define EACH_MEMBER_3(M) EACH_MEMBER_2(M) M(2)
#define EACH_MEMBER_4(M) EACH_MEMBER_3(M) M(3)
#define EACH_MEMBER_5(M) EACH_MEMBER_4(M) M(4)
#define EACH_MEMBER_6(M) EACH_MEMBER_5(M) M(5)
#define EACH_MEMBER_7(M) EACH_MEMBER_6(M) M(6)
#if N - F == 2
#define EACH_MEMBER EACH_MEMBER_2
#elif N - F == 3
#define EACH_MEMBER EACH_MEMBER_3
#elif N - F == 4
#define EACH_MEMBER EACH_MEMBER_4
#elif N - F == 5
#define EACH_MEMBER EACH_MEMBER_5
#elif N - F == 6
#define EACH_MEMBER EACH_MEMBER_6
#else
#define EACH_MEMBER EACH_MEMBER_7
#endif

#ifdef TRACE
#define OR_SAFE(i, b) || safe /* of the step that is looked at */
#define IS_LED_TO(i, b) (VOTERS(i, PREVOTE, attempt[i], b) & BIT(more)) /* the step names the leader */
#else
#define OR_SAFE(i, b) NAMED(EACH_ATTEMPT_OF_BLOCK_, A)(OR_SAFE_IN, i, b)
#define OR_SAFE_IN(i, a, b) || (a >= bound[i] && a <= attempt[i] && IS_SAFE_QUORUM(i, a, b))
#endif

#ifndef PROGRESS
#define IS_LOCK_TOLD(i, a, b) 0
#define IS_FREE(i) 1
#ifndef TRACE
#define IS_LED_TO(i, b) 1 /* a liar may lead, and a member may wait for it or not */
#define IS_SAFE_QUORUM(i, a, b) IS_QUORUM(VOTERS(i, PREVOTE, a, b))
#endif
#define IS_LATE(i) 0 /* it may precommit up to the end */
#define IS_VOTABLE(i, b) 1
#define MAY_TIME_OUT(i) (attempt[i] < A)
#define MAY_LEAVE(i) (attempt[i] < A)
#define MAY_CRASH(i) (height[i] < H)
#define IS_WITHIN(a) 1
#endif

#ifdef PROGRESS

#if N - F == 3
#define EACH_HONEST(M, i) M(i, 0) M(i, 1) M(i, 2)
#elif N - F == 5
#define EACH_HONEST(M, i) M(i, 0) M(i, 1) M(i, 2) M(i, 3) M(i, 4)
#endif

/* From `stable` on nobody crashes, and what an honest member says or holds has reached all others before a timer fires. */
bit stable;
SETS leaders[A + 1];       /* of attempts, one member each, in turn */
byte shown; /* who holds block 0, a liar's, whose hash is the lowest; the other block is everybody's */

/* The lowest hash of those held; in the first attempt, and before the network is well, any. */
#define IS_LOWEST(i, b) (b == (shown & BIT(i) -> 0 : B - 1))
#define IS_VOTABLE(i, b) (!stable || IS_LOWEST(i, b) || (attempt[i] == 1 && (b > 0 || (shown & BIT(i)))))
#define IS_LATER_ATTEMPT(i) (attempt[i] > LEADERLESS_ATTEMPTS)
#define IS_SAFE_QUORUM(i, a, b) (IS_QUORUM(VOTERS(i, PREVOTE, a, b)) || IS_LOCK_TOLD(i, a, b))

/* A member waits for the leader's prevote. If both are honest and the network is well, it comes before the wait is over. */
#define LEADER(i) leaders[attempt[i]]
#define HAS_LED(i) ((said[SAID(0, PREVOTE, attempt[i], 0)] | said[SAID(0, PREVOTE, attempt[i], B - 1)]) & LEADER(i))
#define OR_AWAITS(i, j) || ((LEADER(i) & BIT(j)) && attempt[j] <= attempt[i] && (attempt[j] == attempt[i] || !MUST_WAIT(j)))
#if MUTANT == NO_LEADER
#define AWAITS(i) 0
#define IS_FREE(i) 1
#define IS_LED_TO(i, b) 0
#else
#define AWAITS(i) (stable && IS_LATER_ATTEMPT(i) && !(LEADER(i) & BIT(i)) && !HAS_LED(i) && (0 EACH_HONEST(OR_AWAITS, i)))
#define IS_FREE(i) (!stable || !IS_LATER_ATTEMPT(i) || (LEADER(i) & (BIT(i) | liars)) \
    || (!AWAITS(i) && !IS_LED_SAFELY(i, 0) && !IS_LED_SAFELY(i, B - 1)))
#define IS_LED_TO(i, b) (((said[SAID(0, PREVOTE, attempt[i], b)] | liars) & LEADER(i)) && (b > 0 || (shown & BIT(i))))
#endif
#define IS_LED_SAFELY(i, b) ((said[SAID(0, PREVOTE, attempt[i], b)] & LEADER(i)) && IS_SAFE(i, b))

/* Timers of honest members differ by less than the part of an attempt in which nobody precommits. */
#if MUTANT == PRECOMMIT_AT_THE_END
#define IS_LATE(i) 0
#else
#define IS_LATE(i) (IS_LATER_ATTEMPT(i) && late[i])
#endif
#define AND_AS_FAR(i, j) && attempt[j] >= attempt[i]
#define AND_LATE(i, j) && (attempt[j] > attempt[i] || !IS_LATER_ATTEMPT(i) || (attempt[j] == attempt[i] && late[j]))
#define MAY_BE_LATE(i) (IS_IDLE(i) && IS_LATER_ATTEMPT(i) && !late[i] \
    && (!stable || (IS_ALL_SETTLED && !AWAITS(i) EACH_HONEST(AND_AS_FAR, i))))
#define MAY_TIME_OUT(i) (attempt[i] < (stable -> A : C) && (!stable || (IS_ALL_SETTLED && !AWAITS(i) EACH_HONEST(AND_LATE, i))))
#define IS_SPLIT(i) (B > 1 && said[SAID(0, PREVOTE, attempt[i], 0)] != 0 && said[SAID(0, PREVOTE, attempt[i], B - 1)] != 0)
#define MAY_LEAVE(i) (stable -> attempt[i] < A && IS_SPLIT(i) : attempt[i] < C)
#define MAY_CRASH(i) (!stable && height[i] < H)
#define IS_WITHIN(a) (a <= (stable -> A : C))

/* What must be heard of without any liar's help: votes of honest members, and the prevotes behind their locks. */
#define OR_LOCKED_1(j, a, b) || (lock_attempt[j] == a && lock_block[j] == b)
#define OR_LOCKED_2(a, b) OR_LOCKED_1(0, a, b) OR_LOCKED_1(1, a, b)
#if N - F == 3
#define OR_LOCKED(a, b) OR_LOCKED_2(a, b) OR_LOCKED_1(2, a, b)
#elif N - F == 5
#define OR_LOCKED(a, b) OR_LOCKED_2(a, b) OR_LOCKED_1(2, a, b) OR_LOCKED_1(3, a, b) OR_LOCKED_1(4, a, b)
#endif
#if MUTANT == LOCK_NOT_REPEATED
#define IS_LOCK_HEARD(i, a, b) IS_QUORUM(said[SAID(0, PREVOTE, a, b)])
#else
#define IS_LOCK_HEARD(i, a, b) (IS_QUORUM(said[SAID(0, PREVOTE, a, b)]) OR_LOCKED(a, b))
#endif
#define IS_LOCK_TOLD(i, a, b) (stable && IS_LOCK_HEARD(i, a, b))
#define OR_MUST_LOCK(i, a, b) || (a <= attempt[i] && IS_LATER(i, a, b) && IS_LOCK_HEARD(i, a, b))
#define OR_MUST_FOLLOW(i, a) || (a > attempt[i] && SIZE(reached[REACHED(0, a)]) >= FOLLOWED)
#define OR_MUST_COMMIT(i, a, b) || IS_QUORUM(said[SAID(0, PRECOMMIT, a, b)])
#define HAS_TO_ACT(i) (height[i] < H && (pending[i] || (own[OWN(i, PREVOTE, attempt[i])] == 0 && !AWAITS(i)) || MAY_PRECOMMIT(i) \
    || decided[0] != UNDECIDED || (shown != 0 && !(shown & BIT(i))) \
    EACH_ATTEMPT(OR_MUST_LOCK, EACH_BLOCK, i) EACH_ATTEMPT(OR_MUST_FOLLOW, NO_BLOCK, i) EACH_ATTEMPT(OR_MUST_COMMIT, EACH_BLOCK, i)))
#define IS_SETTLED_3 (!HAS_TO_ACT(0) && !HAS_TO_ACT(1) && !HAS_TO_ACT(2))
#if N - F == 3
#define IS_ALL_SETTLED IS_SETTLED_3
#elif N - F == 5
#define IS_ALL_SETTLED (IS_SETTLED_3 && !HAS_TO_ACT(3) && !HAS_TO_ACT(4))
#endif
/* Nothing is left that anybody has to do, and no timer leads on, if liars say nothing more. */
#define MUST_WAIT(i) (height[i] == H || attempt[i] == A || (HAS_VOTED(i) && SIZE(reached[REACHED(0, attempt[i])]) < NUM_AS_FAR))
#if N - F == 3
#define IS_STUCK (stable && !IS_DONE && MUST_WAIT(0) && MUST_WAIT(1) && MUST_WAIT(2) && IS_ALL_SETTLED)
#elif N - F == 5
#define IS_STUCK (stable && !IS_DONE && MUST_WAIT(0) && MUST_WAIT(1) && MUST_WAIT(2) && MUST_WAIT(3) && MUST_WAIT(4) && IS_ALL_SETTLED)
#endif
#define AND_DONE(i) && height[i] == H
#define IS_DONE (1 EACH_MEMBER(AND_DONE))

#endif

#define PREVOTE_FOR(i, a, b) :: d_step { MAY_PREVOTE(i, b) -> cast(i, PREVOTE, attempt[i], b) }
#define LOCK_ON(i, a, b) :: d_step { MAY_LOCK(i, a, b) -> move_lock(i, a, b) }
#define GO_TO(i, a) :: d_step { MAY_FOLLOW(i, a) && IS_WITHIN(a) -> enter_attempt(i, a) }
#define OR_DECIDED_IN(i, a, b) || IS_QUORUM(DECIDING(i, a, b))
#define COMMIT(i, a, b) :: d_step { IS_IDLE(i) && (MAY_BE_TOLD(i, b) || (IS_PRESENT(i) && (0 OR_DECIDED(i, b)))) -> commit(i, b) }
#define STEPS(i) \
    EACH_BLOCK(PREVOTE_FOR, i, 0) \
    :: d_step { MAY_PRECOMMIT(i) -> cast(i, PRECOMMIT, attempt[i], lock_block[i]) } \
    LATE_STEP(i) \
    EACH_ATTEMPT(LOCK_ON, EACH_BLOCK, i) \
    EACH_ATTEMPT(GO_TO, NO_BLOCK, i) \
    EACH_BLOCK(COMMIT, i, 0) \
    :: d_step { MAY_END(i) && MAY_TIME_OUT(i) -> enter_attempt(i, attempt[i] + 1) } \
    :: d_step { MAY_CUT_SHORT(i) && MAY_LEAVE(i) -> enter_attempt(i, attempt[i] + 1) } \
    BACK_STEP(i) \
    LATENESS_STEP(i) \
    :: d_step { pending[i] -> say(i); check_quorums(i) } \
    :: d_step { MAY_CRASH(i) -> restart(i) }
#ifdef PROGRESS
#define LATENESS_STEP(i) :: d_step { MAY_BE_LATE(i) -> late[i] = 1 }
#else
#define LATENESS_STEP(i)
#endif
#if MUTANT == LATE_PRECOMMIT
#define LATE_STEP(i) :: d_step { MAY_PRECOMMIT_LATE(i) -> cast(i, PRECOMMIT, lock_attempt[i], lock_block[i]) }
#else
#define LATE_STEP(i)
#endif
#if MUTANT == ATTEMPT_COMES_BACK
#define BACK_STEP(i) :: d_step { IS_WORKING(i) && attempt[i] > 1 -> enter_attempt(i, attempt[i] - 1) }
#else
#define BACK_STEP(i)
#endif

inline begin_all() {
    for (z : 0 .. HONEST - 1) {
        attempt[z] = 1;
        kept_attempt[z] = 1
    }
    z = 0;
    for (y : 0 .. H - 1) {
        decided[y] = UNDECIDED
    }
    y = 0;
    for (z : 1 .. NUM_SETS - 1) {
        size_of[z] = size_of[z / 2] + z % 2
    }
    z = 0
}

#ifndef TRACE

/* All that can happen. Members are alike, so that only one order of them is looked at. */

hidden int key[HONEST];
hidden int kept_value;

#define SWAP(array, i, j) kept_value = array[i]; array[i] = array[j]; array[j] = kept_value
#define SWAP_SET(set, i, j) set = (set & ~(BIT(i) | BIT(j))) | ((set >> (i) & 1) << (j)) | ((set >> (j) & 1) << (i))

inline swap_members(i, j) {
    x = key[i]; key[i] = key[j]; key[j] = x;
    SWAP(height, i, j); SWAP(attempt, i, j); SWAP(lock_attempt, i, j); SWAP(lock_block, i, j); SWAP(pending, i, j); SWAP(bound, i, j);
    SWAP(kept_attempt, i, j); SWAP(kept_lock_attempt, i, j); SWAP(kept_lock_block, i, j);
    for (y : 0 .. 2 * A - 1) {
        SWAP(own, (i) * 2 * A + y, (j) * 2 * A + y);
        SWAP(kept, (i) * 2 * A + y, (j) * 2 * A + y)
    }
    for (y : 0 .. NUM_SLOTS * 2 * A * B - 1) {
        SWAP_SET(said[y], i, j)
    }
    for (y : 0 .. NUM_SLOTS * A - 1) {
        SWAP_SET(reached[y], i, j)
    }
#ifdef PROGRESS
    SWAP_SET(shown, i, j);
    SWAP(late, i, j);
    for (y : 1 .. A) {
        SWAP_SET(leaders[y], i, j)
    }
#endif
    y = 0
}

inline settle() {
#ifndef ALL_ORDERS
    for (z : 0 .. HONEST - 1) {
        key[z] = ((height[z] * (A + 1) + attempt[z]) * (A + 1) + lock_attempt[z]) * 2 * B + lock_block[z] * 2 + pending[z];
        for (y : 0 .. 2 * A - 1) {
            key[z] = key[z] * (B + 1) + own[z * 2 * A + y]
        }
    }
    for (z : 1 .. HONEST - 1) {
        for (w : 0 .. HONEST - 2) {
            if
            :: key[w] < key[w + 1] -> swap_members(w, w + 1)
            :: else
            fi
        }
    }
    x = 0; y = 0; z = 0; w = 0
#else
    skip
#endif
}

#ifdef PROGRESS

/*
 * Progress: whatever happened before, once the network is well there is always something that an honest member has to
 * do until all have committed, also if liars say nothing more. Every step adds to what is said, held or reached, so
 * that doing it leads to the end.
 */
#define SHOW(i) :: d_step { !(shown & BIT(i)) -> shown = shown | BIT(i) } /* a liar, to whom it likes */
#define SPREAD(i) :: d_step { stable && shown != 0 && !(shown & BIT(i)) -> shown = shown | BIT(i) }

#ifdef LOCKS
inline vote(i, kind, a, b) {
    assert(kind == PREVOTE -> MAY_PREVOTE(i, b) : MAY_PRECOMMIT(i));
    cast(i, kind, a, b);
    say(i)
}

/* The network becomes well when two members are locked on different blocks, each with the liar's help. */
inline meet_with_locks() {
    shown = BIT(0) | BIT(1) | BIT(2);
    vote(0, PREVOTE, 1, 0);
    vote(1, PREVOTE, 1, 0);
    vote(2, PREVOTE, 1, 1);
    assert(MAY_LOCK(0, 1, 0));
    move_lock(0, 1, 0);
    vote(0, PRECOMMIT, 1, 0);
    assert(MAY_END(0) && MAY_END(1) && MAY_END(2));
    enter_attempt(0, 2);
    enter_attempt(1, 2);
    enter_attempt(2, 2);
    vote(0, PREVOTE, 2, 0);
    vote(1, PREVOTE, 2, 1);
    vote(2, PREVOTE, 2, 1);
    assert(MAY_LOCK(2, 2, 1));
    move_lock(2, 2, 1);
    vote(2, PRECOMMIT, 2, 1);
    stable = 1
}
#endif

/* The order in which members lead from attempt 3 on: any, then the same again. */
#define LEADS(i) :: turn <= LEADERLESS_ATTEMPTS + N && !(leaders[0] & BIT(i)) -> leaders[turn] = BIT(i); leaders[0] = leaders[0] | BIT(i)
inline choose_leaders() {
    for (turn : LEADERLESS_ATTEMPTS + 1 .. A) {
        if
        EACH_MEMBER(LEADS)
#ifndef HONEST_LEAD
        LEADS(HONEST)
#endif
#if F > 1
        LEADS(HONEST + 1)
#endif
        :: turn > LEADERLESS_ATTEMPTS + N -> leaders[turn] = leaders[turn - N]
        fi
    }
    turn = 0;
    leaders[0] = 0
}

active proctype members() {
    byte turn;
    d_step { begin_all() };
    atomic { choose_leaders() };
#ifdef LEAD
    d_step { attempt[0] = 2; kept_attempt[0] = 2; attempt[1] = 2; kept_attempt[1] = 2; stable = 1 };
#endif
#ifdef LOCKS
    d_step { meet_with_locks() };
#endif
    do
    :: IS_DONE -> break
    :: d_step { IS_STUCK -> assert(!stable) }
    :: atomic {
        if
        EACH_MEMBER(STEPS)
        EACH_MEMBER(SPREAD)
#if B > 1
        EACH_MEMBER(SHOW)
#endif
        :: d_step { !stable -> stable = 1 }
        fi;
        d_step { settle() }
    }
    od
}

#else

/* Safety: the assertions of `tell`, `check_quorums` and `commit`, in every state. */
active proctype members() {
    d_step { begin_all() };
end:
    do
    :: atomic {
        if
        EACH_MEMBER(STEPS)
        fi;
        d_step { settle() }
    }
    od
}

#endif

#endif

#ifdef TRACE

/* The recorded steps of a network of bdfl, in their order: accepted if each is one that the model may take. */

c_code {
\#include <string.h>
    static int *steps, num_steps, furthest;
    static void report(void) { printf("reached step %d of %d\n", furthest, num_steps); }
    static const char *const names[] = {"rules", "liar", "hear", "prevote", "precommit", "lock", "enter", "say", "commit", "restart"};
    static int trace(int step, int field) { /* what, who, height, attempt, block, voter or kind */
        char name[16];
        int k, given[5];
        FILE *file = steps ? NULL : fopen(getenv("TRACE_FILE"), "r");
        if (file) {
            steps = malloc(6 * sizeof(int));
            while (fscanf(file, "%15s %d %d %d %d %d", name, given, given + 1, given + 2, given + 3, given + 4) == 6) {
                for (k = 0; k < 10 && strcmp(name, names[k]); k++) {}
                steps = realloc(steps, 6 * (num_steps + 2) * sizeof(int));
                steps[6 * num_steps] = k;
                memcpy(steps + 6 * num_steps + 1, given, sizeof given);
                num_steps++;
            }
            fclose(file);
            atexit(report);
        }
        furthest = step > furthest ? step : furthest;
        return step < num_steps ? steps[6 * step + field] : field ? 0 : 255;
    }
};

#define RULES 0
#define LIAR 1
#define HEAR 2
#define DO_PREVOTE 3
#define DO_PRECOMMIT 4
#define LOCK 5
#define ENTER 6
#define SAY 7
#define COMMIT_IT 8
#define RESTART 9
#define END 255

active proctype network() {
    d_step { begin_all() };
    do
    :: d_step {
        c_code {
            now.what = trace(now.step, 0);
            now.who = trace(now.step, 1);
            now.place = trace(now.step, 2);
            now.when = trace(now.step, 3);
            now.block = trace(now.step, 4);
            now.more = trace(now.step, 5);
        };
        find_latest(who);
        if
        :: what == DO_PREVOTE -> find_safe(who, block)
        :: else
        fi
       };
       if
       :: d_step { what == RULES -> quorum[place] = when; followed[place] = block }
       :: d_step { what == LIAR -> liars = liars | BIT(who) }
       :: d_step { what == HEAR && place == height[who] && IS_TOLD(more / 2, more % 2, place, when, block) -> hear(who, more / 2, more % 2, when, block) }
       :: d_step { what == DO_PREVOTE && place == height[who] && when == attempt[who] && MAY_PREVOTE(who, block) -> cast(who, PREVOTE, when, block) }
       :: d_step { what == DO_PRECOMMIT && place == height[who] && when == attempt[who] && lock_block[who] == block && MAY_PRECOMMIT(who) -> cast(who, PRECOMMIT, when, block) }
       :: d_step { what == LOCK && place == height[who] && MAY_LOCK(who, when, block) -> move_lock(who, when, block) }
       :: d_step { what == ENTER && place == height[who] && MAY_ENTER(who, when) -> enter_attempt(who, when) }
       :: d_step { what == SAY && place == height[who] -> say(who) }
       :: d_step { what == COMMIT_IT && place == height[who] && IS_CERTIFIED(when, block, place) -> commit(who, block) }
       :: d_step { what == RESTART && place == height[who] -> restart(who);
            assert(attempt[who] == when && lock_attempt[who] == more && lock_block[who] == (more -> block : 0)) }
       :: what == END -> break
       fi;
       step++
    od
}

#endif
