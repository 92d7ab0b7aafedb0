"""Every verb of a computed sentence, as a predicate with a threshold, fixed before looking.

Labels use them too. The thresholds stand in one table, are printed beside whatever uses them,
and a report links each sentence to its criterion.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Criterion:
    """A named threshold.

    Args:
        name: how code and pages refer to it.
        threshold: the number.
        rule: what must hold, in words, with the number filled in by ``{}``.
        why: where the number comes from.
    """

    name: str
    threshold: float
    rule: str
    why: str

    def __str__(self) -> str:
        return self.rule.format(f"{self.threshold:g}")


CRITERIA: dict[str, Criterion] = {
    criterion.name: criterion
    for criterion in (
        Criterion(
            "label_floor",
            0.4,
            "a head is labelled when the lower end of its 95% interval (where all sequences are "
            "equal, their value) is at least {}",
            "positional patterns have no input without the structure, so there is no p-value",
        ),
        Criterion(
            "label_ratio",
            2.0,
            "and its score is at least {} times that of its best rival offset",
            "a head spread over neighbouring offsets is not a clean one",
        ),
        Criterion(
            "content_margin",
            0.05,
            "a head follows content when its attention falls by more than {} on average where "
            "the copy is taken away",
            "what chance and a slight preference for a distance can make",
        ),
        Criterion(
            "family_p",
            0.05,
            "and the family-wise p-value of that fall, over all heads, is below {}",
            "one false alarm in twenty models",
        ),
        Criterion(
            "learns",
            1.0,
            "a model learns the task when its greedy exact match on held-out sequences is {}",
            "no error in 2,000",
        ),
        Criterion(
            "fails",
            0.05,
            "a model fails the task when its greedy exact match is at most {}",
            "one sequence in twenty",
        ),
        Criterion(
            "clean",
            0.95,
            "a head is a clean reversal head when its anti-diagonal score is at least {}",
            "what the chapter describes",
        ),
        Criterion(
            "low_entropy",
            0.3,
            "entropy is very low when it is under {} nats on the predicting queries",
            "e^0.3 = 1.35 keys",
        ),
        Criterion(
            "broad",
            1.5,
            "a head attends broadly when its entropy is at least {} nats on the predicting queries",
            "e^1.5 = 4.5 keys",
        ),
        Criterion(
            "chance_like",
            2.0,
            "an anti-diagonal score is near chance when it is at most {} times chance",
            "uniform attention gives chance itself",
        ),
        Criterion(
            "measurable",
            0.5,
            "effects on exact match are read only where the clean model's is at least {}",
            "a model that fails has nothing to lose",
        ),
        Criterion(
            "needs",
            0.5,
            "the model needs a head when removing it lowers exact match by at least {} under both "
            "mean and resample ablation",
            "zero ablation alone decides no sentence",
        ),
        Criterion(
            "can_go",
            0.05,
            "a head, or a set of heads together, can go when removing it lowers exact match by at "
            "most {} under both mean and resample ablation",
            "one sequence in twenty",
        ),
        Criterion(
            "suffices",
            0.9,
            "a set of heads suffices when (keep only them - keep none) / (clean - keep none) is at "
            "least {} in exact match, under both mean and resample ablation",
            "nearly all of what attention does for the model",
        ),
        Criterion(
            "backup",
            0.5,
            "heads back each other up when removing them together lowers exact match by at least "
            "{} more than the sum of removing each alone, under both mean and resample ablation",
            "a positive interaction, large enough to matter",
        ),
        Criterion(
            "confident",
            0.1,
            "longer training makes a model more confident when the temperature at which exact "
            "match is 50% rises by at least {} with each longer training that reaches 50%",
            "half a step of the sweep's finest part",
        ),
        Criterion(
            "right_when_cold",
            0.999,
            "sampling is always right when the exact probability of a whole answer is at least {}",
            "one error in a thousand",
        ),
        Criterion(
            "errs_when_hot",
            0.95,
            "sampling errs when the exact probability of the whole answer is below {}",
            "one error in twenty",
        ),
        Criterion(
            "sampling_agrees",
            0.001,
            "samples disagree with the exact probabilities when the smallest two-sided tail is "
            "below {} divided by the number of cells",
            "a false alarm in a thousand reports",
        ),
        Criterion(
            "fragile",
            0.1,
            "removing a head makes the model more fragile to temperature when, under both mean "
            "and resample ablation, the temperature at which exact match is 50% falls by at least "
            "{} of its value, and the head can go at the lowest temperature of the sweep",
            "a tenth; a head that is needed to be right at all is another matter",
        ),
        Criterion(
            "specialised",
            0.5,
            "heads are specialised when, in the layer of the model's best head, the best and the "
            "worst anti-diagonal score differ by at least {}",
            "half of the scale",
        ),
        Criterion(
            "attends",
            1.5,
            "the last token attends to a word when its attention, averaged over heads and without "
            "the first key, is at least {} times chance",
            "half as much again as uniform attention",
        ),
        Criterion(
            "follows",
            1.0,
            "the answer follows the country when its capital beats every other capital of the set "
            "in a share of {} of the prompts",
            "every prompt",
        ),
        Criterion(
            "carries",
            0.2,
            "a head carries the country to the answer when cutting its attention on the country "
            "lowers the logit difference by at least {} of its clean value",
            "a fifth",
        ),
        Criterion(
            "follows_enough",
            0.5,
            "which heads carry the country to the answer is asked where the answer follows it in "
            "at least {} of the prompts and the clean logit difference is above 0 by more than 2 "
            "standard errors over the countries",
            "there must be something to carry; by chance, one capital in eight, half of eight "
            "prompts follow with probability 0.01",
        ),
        Criterion(
            "peaked",
            0.9,
            "a prediction is peaked when the likeliest token has a probability above {}",
            "what the chapter claims of factual prompts",
        ),
        Criterion(
            "kinds_differ",
            0.05,
            "factual and open prompts differ when the exact two-sided permutation test over "
            "prompts gives p below {}",
            "one false alarm in twenty",
        ),
        Criterion(
            "entropy_rises",
            1.0,
            "entropy rises with temperature when, from the lowest temperature to the highest, its "
            "mean over the prompts of every kind grows by at least {} nat",
            "e times as many effective tokens",
        ),
        Criterion(
            "keeps_fewer",
            0.05,
            "a filter keeps fewer tokens after factual than after open prompts when their mean is "
            "lower and the exact two-sided permutation test over prompts gives p below {}",
            "one false alarm in twenty",
        ),
        Criterion(
            "less_likely",
            1.0,
            "hot samples are less likely than cold ones when the mean log-likelihood per token, "
            "under the model itself, falls by at least {} nat from the lowest temperature to the "
            "highest",
            "each token e times less likely",
        ),
        Criterion(
            "follows_greedy",
            0.5,
            "samples follow the greedy continuation when they have its token in a share of at "
            "least {} of the places",
            "half of them",
        ),
        Criterion(
            "repeats",
            0.1,
            "samples repeat themselves when the mean share of repeated 3-grams is at least {}",
            "one in ten",
        ),
        Criterion(
            "exceptional",
            0.05,
            "a set of heads is exceptional when at most a share of {} of the sets with as many "
            "heads in every layer, itself and ties included, is at least as extreme",
            "one false alarm in twenty; with fewer than 20 such sets it is not testable",
        ),
        Criterion(
            "necessary",
            0.5,
            "a set of heads is necessary when removing it costs at least {} of what removing all "
            "heads costs, under both mean and resample ablation",
            "half of all that attention does for the model",
        ),
        Criterion(
            "sufficient",
            0.9,
            "a set of heads is sufficient when (keep only it - keep none) / (clean - keep none) is "
            "at least {}, under both mean and resample ablation",
            "nearly all of what attention does for the model",
        ),
    )
}
