/** When a schedule is valid and what it costs: FORMAT.md, section 7. */
import { Decimal, tenTo, whole } from "./decimal.mjs";
import { isAscending, require } from "./encoding.mjs";

const MOST = 2n ** 63n - 1n;
const HALF = new Decimal(5n, -1);
const ONE = whole(1n);
const LN_2 = whole(2n).ln();
const [MICRO, NANO, PICO, ATTO, NOISE, CAPACITANCE] = [6, 9, 12, 18, 30, 36].map(tenTo);
const OVERDRAFT = new Decimal(1_000_001n, -6);

function most(...numbers) {
  return numbers.reduce((largest, number) => (number > largest ? number : largest));
}

/** Raises unless the schedule is one for that round; `candidates` are conditions by client. */
export function requireSchedule({ physics, law }, members, schedule, round, candidates, queue) {
  const { selected } = schedule;
  require(schedule.round === round, "schedule-round");
  require(isAscending(selected) && selected.every((client) => client < members.length), "schedule-form");
  require(schedule.cpu_hz.length === selected.length && schedule.power_uw.length === selected.length, "schedule-form");
  require(schedule.mining_hz.length === members.length, "schedule-form");
  if (schedule.reason !== "") {
    require(selected.length === 0 && schedule.mining_hz.every((hz) => hz === 0n), "schedule-form");
  } else {
    requireConstraints(physics, members, schedule, candidates);
  }
  const costs = costSchedule(physics, members, schedule, candidates, queue);
  require(costs.longest.isAbove(whole(law.max_exchange_ns)) === false, "schedule-exchange");
  costs.spent.forEach((energy, client) => {
    if (energy.c === 0n) return;
    const budget = whole(candidates.get(client).energy_budget_pj).over(PICO);
    require(!energy.isAbove(budget.times(OVERDRAFT)), "schedule-C3", `client ${client}`);
  });
  const { delay_ns, energy_pj, objective } = costs;
  require(most(delay_ns, ...energy_pj, objective < 0n ? -objective : objective) <= MOST, "schedule-form", "too large");
  require(schedule.objective_nano === objective, "schedule-objective");
}

function requireConstraints(physics, members, schedule, candidates) {
  const { selected, mining_hz } = schedule;
  const mining = [...mining_hz.keys()].filter((client) => mining_hz[client] > 0n);
  require([...selected, ...mining].every((client) => candidates.has(client)), "schedule-C1");
  require(BigInt(selected.length) >= physics.min_clients, "schedule-C2");
  require(mining.length > 0, "schedule-form", "nobody mines");
  members.forEach(({ limits }, client) => {
    require(limits.mining_max_hz === null || mining_hz[client] <= limits.mining_max_hz, "schedule-cap");
  });
  selected.forEach((client, place) => {
    const { limits } = members[client];
    const [cpu, power] = [schedule.cpu_hz[place], schedule.power_uw[place]];
    require(limits.cpu_max_hz === null || cpu <= limits.cpu_max_hz, "schedule-cap");
    require(power <= most(limits.power_uw, limits.power_max_uw), "schedule-cap");
    require(limits.cycles === 0n || cpu > 0n, "schedule-form", "trains at 0 Hz");
    require(power > 0n && candidates.get(client).gain_atto > 0n, "schedule-form", "uploads at rate 0");
  });
}

/** Costs of a schedule that keeps all constraints but, perhaps, C3; `spent` are the energies before they are rounded. */
export function costSchedule(physics, members, schedule, candidates, queue) {
  const spent = members.map(() => whole(0n));
  if (schedule.reason !== "")
    return { exchange_ns: 0n, mining_ns: 0n, delay_ns: 0n, energy_pj: members.map(() => 0n), objective: 0n, spent, longest: whole(0n) };
  const bandwidth = whole(physics.bandwidth_hz);
  let [exchange, owed] = [whole(0n), 0n];
  schedule.selected.forEach((client, place) => {
    const { limits } = members[client];
    const cpu = schedule.cpu_hz[place];
    const power = whole(schedule.power_uw[place]).over(MICRO);
    const gain = whole(candidates.get(client).gain_atto).over(ATTO);
    const noise = bandwidth.times(whole(physics.noise).over(NOISE));
    const rate = bandwidth.times(ONE.plus(power.times(gain).over(noise)).ln()).over(LN_2);
    const upload = whole(limits.model_bits).over(rate);
    const training = limits.cycles === 0n ? whole(0n) : whole(limits.cycles).over(whole(cpu));
    const both = training.plus(upload);
    if (both.isAbove(exchange)) exchange = both;
    const capacitance = whole(limits.capacitance).over(CAPACITANCE);
    const energy = HALF.times(capacitance).times(whole(limits.cycles)).times(whole(cpu * cpu));
    spent[client] = spent[client].plus(energy.plus(power.times(upload)));
    owed += queue[client];
  });
  const mining = whole(physics.work_cycles).over(whole(schedule.mining_hz.reduce((sum, hz) => sum + hz, 0n)));
  schedule.mining_hz.forEach((hz, client) => {
    if (hz === 0n) return;
    const capacitance = whole(members[client].limits.capacitance).over(CAPACITANCE);
    spent[client] = spent[client].plus(HALF.times(capacitance).times(mining).times(whole(hz ** 3n)));
  });
  const delay = exchange.plus(mining).plus(whole(physics.overhead_ns).over(NANO));
  return {
    exchange_ns: exchange.times(NANO).count(),
    mining_ns: mining.times(NANO).count(),
    delay_ns: delay.times(NANO).count(),
    energy_pj: spent.map((energy) => energy.times(PICO).count()),
    objective: whole(physics.tradeoff_nano).times(delay).minus(whole(owed)).count(),
    spent,
    longest: exchange.times(NANO),
  };
}
