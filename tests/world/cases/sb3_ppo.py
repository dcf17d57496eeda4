"""stable-baselines3: PPO on CartPole; a step collects 64 transitions and trains two epochs."""

import stable_baselines3

from tests.world.harness.training import Training, Way

LIBRARIES = ("stable-baselines3", "gymnasium")


def make(way: Way) -> Training:
    agent = stable_baselines3.PPO(
        "MlpPolicy",
        "CartPole-v1",
        n_steps=64,
        batch_size=32,
        n_epochs=2,
        seed=0,
        device="cpu",
        policy_kwargs={"net_arch": [16]},
    )
    agent.policy.forward = way.model(agent.policy.forward)
    agent.policy.evaluate_actions = way.model(agent.policy.evaluate_actions)
    agent.train = way.step(agent.train)

    def step():
        agent.learn(total_timesteps=64, reset_num_timesteps=False)
        return {name: value for name, value in agent.logger.name_to_value.items() if name.startswith("train/")}

    return Training(step, (agent.policy, agent.policy.optimizer))
