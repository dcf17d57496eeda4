"""stable-baselines3: SAC on Pendulum; a step makes 16 transitions and as many gradient steps of actor, critics, temperature."""

import stable_baselines3

from tests.world.harness.training import Training, Way

LIBRARIES = ("stable-baselines3", "gymnasium")


def make(way: Way) -> Training:
    agent = stable_baselines3.SAC(
        "MlpPolicy", "Pendulum-v1", learning_starts=8, batch_size=16, seed=0, device="cpu", policy_kwargs={"net_arch": [16, 16]}
    )
    agent.actor.action_log_prob = way.model(agent.actor.action_log_prob)
    agent.critic.forward = way.model(agent.critic.forward)
    agent.critic_target.forward = way.model(agent.critic_target.forward)
    agent.train = way.step(agent.train)

    def step():
        agent.learn(total_timesteps=16, reset_num_timesteps=False)
        return {name: value for name, value in agent.logger.name_to_value.items() if name.startswith("train/")}

    optimizers = (agent.actor.optimizer, agent.critic.optimizer, agent.ent_coef_optimizer)
    return Training(step, (agent.policy, agent.log_ent_coef, *optimizers))
