//! Makes the entries of one object.

use ctrlmesh_contract::chain::{DEFAULT_MEMORY_MIB, DEFAULT_TIMEOUT_MS};
use ctrlmesh_contract::names::labels;
use ctrlmesh_contract::{Chain, Digest, Entry, FailurePolicy, LabelSelector, Mistakes, Origin, Settings};
use ctrlmesh_manager_api::circuit_breaker::{InterceptType, TrafficInterceptRule};
use ctrlmesh_manager_api::plugin::OnFailure;
use ctrlmesh_manager_api::{CircuitBreaker, FaultInjection, PluginRef, ShardingConfig};
use serde_json::Value;

use super::Resolved;
use super::in_place::{self, PodGroup, divide_pods};
use crate::built_in::{BuiltIn, FIRST_OWN_ORDER};
use crate::hand_over::entry_of_shard;
use crate::label_set::LabelSet;
use crate::labels::has_label;
use crate::origin::origin_of;
use crate::{settings, switches};

/// Everything but the object that its entries depend on.
pub(super) struct Context<'a> {
    pub(super) configs: &'a [&'a ShardingConfig],
    /// ShardingConfigs whose plugins are not resolved.
    pub(super) unresolved: &'a [&'a ShardingConfig],
    /// The chain that was distributed last.
    pub(super) last: Option<&'a Chain>,
    pub(super) breakers: &'a [&'a CircuitBreaker],
    pub(super) resolved: &'a Resolved,
}

impl<'a> Context<'a> {
    pub(super) fn fault_injection(&self, faults: &FaultInjection) -> Result<Vec<Entry>, Mistakes> {
        let is_off = faults.spec.disabled
            || has_label(&faults.metadata, labels::FAULT_INJECTION_DISABLE)
            || switches::holds_back_faults(faults, self.last);
        let pods = faults.spec.selector.clone().unwrap_or_default();
        match settings::fault_inject(faults).filter(|_| !is_off) {
            Some(settings) => self.built_in(BuiltIn::FaultInject, &settings, &pods, &origin_of(faults)),
            None => Ok(Vec::new()),
        }
    }

    pub(super) fn circuit_breaker(&self, breaker: &'a CircuitBreaker) -> Result<Vec<Entry>, Mistakes> {
        if has_label(&breaker.metadata, labels::CIRCUIT_BREAKER_DISABLE) {
            return Ok(Vec::new());
        }
        let (pods, origin) = (&breaker.spec.selector, origin_of(breaker));
        let mut entries = Vec::new();
        if let Some(settings) = settings::rate_limit(breaker) {
            entries.extend(self.built_in(BuiltIn::RateLimit, &settings, pods, &origin)?);
        }
        let lists = self.external_rules(breaker);
        if let Some(settings) = settings::circuit_breaker(breaker, &lists) {
            entries.extend(self.built_in(BuiltIn::CircuitBreaker, &settings, pods, &origin)?);
        }
        Ok(entries)
    }

    pub(super) fn sharding_config(&self, config: &ShardingConfig) -> Result<Vec<Entry>, Mistakes> {
        if config.spec.root.is_some() {
            return Ok(Vec::new());
        }
        let pods = config.spec.selector.clone().unwrap_or_default();
        let origin = origin_of(config);
        let mut entries = Vec::new();
        for plugin in config
            .spec
            .plugins
            .iter()
            .filter(|plugin| BuiltIn::replaced_by(&plugin.name).is_none())
        {
            let digest = match BuiltIn::named_by(plugin) {
                Some(built_in) => self.resolved.built_in(built_in)?,
                None => {
                    let digest = self.resolved.own_digest(config, plugin);
                    digest.map_err(|problem| unresolved_plugin(plugin, &problem))?
                }
            };
            let settings = Value::Object(plugin.settings.clone());
            let mut entry = own_entry(plugin, digest, settings, &pods, &origin);
            entry.name = format!("{}/{}", plugin.name, origin.name);
            entry.order = FIRST_OWN_ORDER + plugin.order;
            entries.push(entry);
        }
        let settings = settings::shard_selector(config);
        let name = entry_of_shard(&origin.name);
        let instead = instead_of(BuiltIn::ShardSelector, config);
        entries.push(self.built_in_entry(
            BuiltIn::ShardSelector,
            name,
            &settings,
            &pods,
            &origin,
            instead.map(|it| (config, it)),
        )?);
        Ok(entries)
    }

    /// A built-in plugin's entry. There are several if other plugins replace it for some of the pods.
    fn built_in(
        &self,
        plugin: BuiltIn,
        settings: &Value,
        pods: &LabelSelector,
        origin: &Origin,
    ) -> Result<Vec<Entry>, Mistakes> {
        let waiting = self.unresolved.iter();
        let running = waiting.filter(|config| self.previous_replacement(plugin, origin, config).is_some());
        let mut configs: Vec<&ShardingConfig> = self.configs.iter().chain(running).copied().collect();
        configs.retain(|config| config.spec.root.is_none());
        configs.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        let configs = configs.into_iter();
        let instead = configs.filter_map(|config| Some((config, instead_of(plugin, config)?)));
        let entry = |PodGroup { suffix, pods, instead }: PodGroup<'_>| {
            let name = format!("{}/{}{suffix}", plugin.name(), origin.name);
            self.built_in_entry(plugin, name, settings, &pods, origin, instead)
        };
        divide_pods(pods, instead)?.into_iter().map(entry).collect()
    }

    /// The plugin that replaced a built-in one for this ShardingConfig in the last chain.
    fn previous_replacement(&self, plugin: BuiltIn, origin: &Origin, config: &ShardingConfig) -> Option<Digest> {
        let name = format!("{}/{}{}", plugin.name(), origin.name, in_place::entry_suffix(config));
        let mut entries = self.last?.entries.iter();
        entries.find(|entry| entry.name == name).map(|entry| entry.plugin)
    }

    fn built_in_entry(
        &self,
        plugin: BuiltIn,
        name: String,
        settings: &Value,
        pods: &LabelSelector,
        origin: &Origin,
        instead: Option<(&ShardingConfig, &PluginRef)>,
    ) -> Result<Entry, Mistakes> {
        let mut entry = match instead {
            Some((config, own)) => {
                let digest = self.resolved.own_digest(config, own).or_else(|problem| {
                    let before = self.previous_replacement(plugin, origin, config);
                    before.ok_or_else(|| unresolved_plugin(own, &problem))
                })?;
                own_entry(own, digest, with_more(settings, own), pods, origin)
            }
            None => {
                let digest = self.resolved.built_in(plugin)?;
                built_in_entry(plugin, digest, settings.clone(), pods, origin)
            }
        };
        entry.name = name;
        entry.order = plugin.order();
        Ok(entry)
    }

    /// An object's lists of external services, and those of other objects that apply too.
    fn external_rules(&self, breaker: &'a CircuitBreaker) -> Vec<&'a TrafficInterceptRule> {
        if switches::holds_back_lists(breaker, self.last) {
            return Vec::new();
        }
        let own = breaker.spec.traffic_intercept_rules.iter();
        own.chain(self.allowed_by_others(breaker)).collect()
    }

    /// Allow lists of other objects that apply to this object's pods too. Each entry is called on its own, so this object's list
    /// would refuse a call that only another object's list allows. Therefore it includes the allow lists of every object that
    /// selects all of these pods. Objects that select only some of them are left out, because they would allow too much to the
    /// others.
    fn allowed_by_others(&self, breaker: &CircuitBreaker) -> Vec<&'a TrafficInterceptRule> {
        let is_allow = |list: &&TrafficInterceptRule| list.intercept_type == InterceptType::Whitelist;
        if !breaker.spec.traffic_intercept_rules.iter().any(|list| is_allow(&list)) {
            return Vec::new();
        }
        let pods = |breaker: &CircuitBreaker| LabelSet::from_selector(&breaker.spec.selector);
        let Some(own) = pods(breaker) else { return Vec::new() };
        let covers = |other: &&&CircuitBreaker| {
            let is_other = other.metadata.name != breaker.metadata.name;
            let is_on = !has_label(&other.metadata, labels::CIRCUIT_BREAKER_DISABLE);
            let is_on = is_on && !switches::holds_back_lists(other, self.last);
            is_other && is_on && pods(other).is_some_and(|others| own.difference(&others).is_empty())
        };
        let others = self.breakers.iter().filter(covers);
        others
            .flat_map(|other| &other.spec.traffic_intercept_rules)
            .filter(is_allow)
            .collect()
    }
}

fn instead_of(built_in: BuiltIn, config: &ShardingConfig) -> Option<&PluginRef> {
    config.spec.plugins.iter().find(|plugin| plugin.name == built_in.name())
}

/// The settings of the built-in plugin, and additional ones of its replacement. Validation keeps them disjoint.
fn with_more(settings: &Value, plugin: &PluginRef) -> Value {
    let mut all = plugin.settings.clone();
    if let Value::Object(fields) = settings {
        all.extend(fields.clone());
    }
    Value::Object(all)
}

fn unresolved_plugin(plugin: &PluginRef, problem: &str) -> Mistakes {
    let mut mistakes = Mistakes::default();
    mistakes.add("spec.plugins", format!("has {:?}, which {problem}", plugin.name));
    mistakes
}

fn own_entry(plugin: &PluginRef, digest: Digest, settings: Value, pods: &LabelSelector, origin: &Origin) -> Entry {
    Entry {
        name: String::new(),
        plugin: digest,
        pod_selector: pods.clone(),
        order: 0,
        on_failure: match plugin.on_failure {
            OnFailure::Closed => FailurePolicy::Closed,
            OnFailure::Open => FailurePolicy::Open,
        },
        timeout_ms: plugin.timeout_ms,
        memory_mib: plugin.memory_mib,
        settings: Settings::new(settings),
        origin: Some(origin.clone()),
    }
}

fn built_in_entry(plugin: BuiltIn, digest: Digest, settings: Value, pods: &LabelSelector, origin: &Origin) -> Entry {
    Entry {
        name: String::new(),
        plugin: digest,
        pod_selector: pods.clone(),
        order: 0,
        on_failure: plugin.on_failure(),
        timeout_ms: DEFAULT_TIMEOUT_MS,
        memory_mib: DEFAULT_MEMORY_MIB,
        settings: Settings::new(settings),
        origin: Some(origin.clone()),
    }
}
